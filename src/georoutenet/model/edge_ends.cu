// Both ends of the edge tower: Eqs. rbf and edge_embedding, and the two-layer ReLU head; forward and backward.
#ifndef EMBEDDING_FORWARD_WARPS
#define EMBEDDING_FORWARD_WARPS 12
#endif
#ifndef EMBEDDING_BACKWARD_WARPS
#define EMBEDDING_BACKWARD_WARPS 8
#endif
#ifndef LOGIT_FORWARD_WARPS
#define LOGIT_FORWARD_WARPS 8
#endif
#ifndef LOGIT_BACKWARD_WARPS
#define LOGIT_BACKWARD_WARPS 8
#endif
constexpr int BASES = 16;
constexpr word ONES = 0x3f803f80u;

// Forward, a warp takes 32 rows at a time, so that a fragment of weights read is used twice.
//
// Backward, the sums over rows that are the gradient of a 128 x 128 matrix stay in the registers of a group of four
// warps, 128 of every thread. A group takes 64 rows at a time, in shared memory.
constexpr int ROWS = 64;
constexpr int GROUP = 128;                 // threads
constexpr int PIECES = ROWS * WIDTH / 8;   // of 16 bytes, of one group's rows

// Where a row's piece is: 8 rows of one piece, and 2 rows of 4 pieces, are in different banks.
__device__ __forceinline__ int place(int row, int piece) { return row * 16 + (piece ^ ((row & 1) << 2 | (row >> 1 & 3))); }

__device__ __forceinline__ void fetch(uint4* rows, const uint4* states, int first, int pairs) {
  int row = threadIdx.x % GROUP / 16, piece = threadIdx.x % 16;
#pragma unroll
  for (int k = 0; k < ROWS / 8; k++, row += 8) {
    bool inside = first + row < pairs;
    copy16(rows + place(row, piece), states + (size_t)(inside ? first + row : 0) * 16 + piece, inside);
  }
  commit_copies();
}
// Lane l's row for load_transposed: matrices 0, 1 are rows 0 to 7 of two pieces side by side, matrices 2, 3 rows 8 to
// 15 of the same: mma's left operand, features x rows.
__device__ __forceinline__ const uint4* left_operand(const uint4* rows, int first, int piece, int lane) {
  return rows + place(first + lane % 8 + lane / 16 * 8, piece + lane / 8 % 2);
}
// Matrices 0, 1 are rows 0 to 15 of a piece, matrices 2, 3 of the next: two right operands, rows x features.
__device__ __forceinline__ const uint4* right_operand(const uint4* rows, int first, int piece, int lane) {
  return rows + place(first + lane % 16, piece + lane / 16);
}

// The head's hidden layer is wanted again only for the units that are on: a bit for each. Lane t of a row has a word:
// bit 7 - s of byte b is feature 32 (s / 2) + 8 t + 4 (s % 2) + b.
extern "C" __global__ void __launch_bounds__(LOGIT_FORWARD_WARPS * 32, 1)
logit_forward(const uint4* e, const unsigned short* weight, const float* bias, const float* last, const float* offset,
              float* out, word* on, int pairs) {
  extern __shared__ uint4 shared[];
  __shared__ float minus_bias[WIDTH], minus_last[WIDTH];
  Lane at;
  // Everything negative: the sign of minus the hidden unit says whether it is on.
  fill(shared, weight);
  for (int k = threadIdx.x; k < FRAGMENTS; k += blockDim.x) {
    uint4 w = shared[k];
    shared[k] = make_uint4(w.x ^ 0x80008000u, w.y ^ 0x80008000u, w.z ^ 0x80008000u, w.w ^ 0x80008000u);
  }
  for (int f = threadIdx.x; f < WIDTH; f += blockDim.x) minus_bias[f] = 0.0f - bias[f], minus_last[f] = -last[f];
  __syncthreads();
  const uint4* fragments = shared + at.lane;
  uint4* mine = shared + FRAGMENTS + threadIdx.x / 32 * 1024 + at.lane;  // two tiles of 32 rows
  int tiles = (pairs + 31) / 32, step = gridDim.x * LOGIT_FORWARD_WARPS;
  float constant = offset[0];
  auto fetch = [&](int tile, int buffer) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const uint4* row = e + piece(min(32 * tile + 8 * k + at.g, pairs - 1), at.t);
#pragma unroll
      for (int c = 0; c < 4; c++) copy16(mine + 512 * buffer + (4 * k + c) * 32, row + 4 * c);
    }
    commit_copies();
  };
  int tile = blockIdx.x * LOGIT_FORWARD_WARPS + threadIdx.x / 32, buffer = 0;
  if (tile < tiles) fetch(tile, 0);
  for (; tile < tiles; tile += step, buffer ^= 1) {
    wait_for_copies();
    if (tile + step < tiles) fetch(tile + step, buffer ^ 1);
    const uint4* x = mine + 512 * buffer;
    float acc[2][16][4];
#pragma unroll
    for (int q = 0; q < 16; q++) {
      float2 b = *(const float2*)&minus_bias[32 * (q / 4) + 8 * at.t + 2 * (q % 4)];
#pragma unroll
      for (int i = 0; i < 2; i++) acc[i][q][0] = acc[i][q][2] = b.x, acc[i][q][1] = acc[i][q][3] = b.y;
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
      uint4 a[4];
#pragma unroll
      for (int k = 0; k < 4; k++) a[k] = x[(4 * k + c) * 32];
#pragma unroll
      for (int q = 0; q < 16; q++) {
        uint4 b = fragments[(q * 4 + c) * 32];
#pragma unroll
        for (int i = 0; i < 2; i++) {
          mma(acc[i][q], a[2 * i].x, a[2 * i + 1].x, a[2 * i].y, a[2 * i + 1].y, b.x, b.y);
          mma(acc[i][q], a[2 * i].z, a[2 * i + 1].z, a[2 * i].w, a[2 * i + 1].w, b.z, b.w);
        }
      }
    }
    float sums[4] = {};
    word bits[4] = {};
#pragma unroll
    for (int s = 0; s < 8; s++) {
      float2 l0 = *(const float2*)&minus_last[32 * (s / 2) + 8 * at.t + 4 * (s % 2)];
      float2 l1 = *(const float2*)&minus_last[32 * (s / 2) + 8 * at.t + 4 * (s % 2) + 2];
#pragma unroll
      for (int k = 0; k < 4; k++) {
        const float *first = &acc[k / 2][2 * s][k % 2 * 2], *second = &acc[k / 2][2 * s + 1][k % 2 * 2];
        sums[k] = fmaf(fminf(first[0], 0.0f), l0.x, fmaf(fminf(first[1], 0.0f), l0.y, sums[k]));
        sums[k] = fmaf(fminf(second[0], 0.0f), l1.x, fmaf(fminf(second[1], 0.0f), l1.y, sums[k]));
        word lower = permute<0x0073>(__float_as_uint(first[0]), __float_as_uint(first[1]));
        word upper = permute<0x7300>(__float_as_uint(second[0]), __float_as_uint(second[1]));
        bits[k] |= permute<0x7610>(lower, upper) >> s & 0x80808080u >> s;
      }
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
      int row = 32 * tile + 8 * k + at.g;
      float z = over_row(sums[k]);
      if (row < pairs) {
        on[(size_t)row * 4 + at.t] = bits[k];
        if (at.t == 0) out[row] = z + constant;
      }
    }
  }
}

// With c the gradient of a logit where a unit is on, else 0: the gradient of e is c (last W), and each group's share of
// c^T e is 128 rows, of the sums of c one more; the parameters' gradients follow from them.
extern "C" __global__ void __launch_bounds__(LOGIT_BACKWARD_WARPS * 32, 1)
logit_backward(const uint4* e, const unsigned short* weight, const float* last, const word* on, const float* grad,
               uint4* de, float* shares, int pairs) {
  extern __shared__ uint4 shared[];
  constexpr int GROUPS = LOGIT_BACKWARD_WARPS / 4;
  Lane at;
  fill_transposed(shared, weight);
  for (int k = threadIdx.x; k < FRAGMENTS; k += blockDim.x) {
    uint4 w = shared[k];
    const float* l = last + 32 * (k / 32 % 4) + 8 * (k % 4);
    shared[k] = make_uint4(pack(low(w.x) * l[0], high(w.x) * l[1]), pack(low(w.y) * l[2], high(w.y) * l[3]),
                           pack(low(w.z) * l[4], high(w.z) * l[5]), pack(low(w.w) * l[6], high(w.w) * l[7]));
  }
  __syncthreads();
  int group = threadIdx.x / GROUP, half = threadIdx.x / 64 % 2, side = threadIdx.x / 32 % 2;
  // Of a group's 64 rows a warp has one half, and of the result one side; of c^T e half and side of the two features.
  const uint4* fragments = shared + side * FRAGMENTS / 2 + at.lane;
  uint4* states = shared + FRAGMENTS + group * 3 * PIECES;
  uint4* change = states + 2 * PIECES;
  int tiles = (pairs + ROWS - 1) / ROWS, step = gridDim.x * GROUPS;
  int tile = blockIdx.x * GROUPS + group, buffer = 0;
  word next_bits[4];
  float next_grad[4];
  auto read = [&](int tile) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
      int row = ROWS * tile + 32 * half + 8 * k + at.g;
      bool inside = row < pairs;
      next_bits[k] = inside ? on[(size_t)row * 4 + at.t] : 0;
      next_grad[k] = inside ? grad[row] : 0.0f;
    }
  };
  float total[4][8][4] = {}, ones[4] = {};
  if (tile < tiles) fetch(states, e, ROWS * tile, pairs), read(tile);
  for (; tile < tiles; tile += step, buffer ^= 1) {
    wait_for_copies();
    barrier(1 + group, GROUP);
    word bits[4], same[4];
#pragma unroll
    for (int k = 0; k < 4; k++) bits[k] = next_bits[k], same[k] = pack(next_grad[k], next_grad[k]);
    if (tile + step < tiles) fetch(states + (buffer ^ 1) * PIECES, e, ROWS * (tile + step), pairs);
    {
      float acc[2][8][4] = {};
#pragma unroll
      for (int c = 0; c < 4; c++) {
        uint4 a[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
          word even = bits[k] << 2 * c, odd = even << 1;
          a[k] = make_uint4(permute<0x9988>(even, 0) & same[k], permute<0xbbaa>(even, 0) & same[k],
                            permute<0x9988>(odd, 0) & same[k], permute<0xbbaa>(odd, 0) & same[k]);
          if (c / 2 == side) change[place(32 * half + 8 * k + at.g, 4 * c + at.t)] = a[k];
        }
#pragma unroll
        for (int q = 0; q < 8; q++) {
          uint4 b = fragments[(q * 4 + c) * 32];
#pragma unroll
          for (int i = 0; i < 2; i++) {
            mma(acc[i][q], a[2 * i].x, a[2 * i + 1].x, a[2 * i].y, a[2 * i + 1].y, b.x, b.y);
            mma(acc[i][q], a[2 * i].z, a[2 * i + 1].z, a[2 * i].w, a[2 * i + 1].w, b.z, b.w);
          }
        }
      }
#pragma unroll
      for (int k = 0; k < 4; k++) {
        int row = ROWS * tile + 32 * half + 8 * k + at.g;
        if (row >= pairs) continue;
#pragma unroll
        for (int c = 0; c < 2; c++) {
          word w[4];
#pragma unroll
          for (int p = 0; p < 4; p++) {
            const float* two = &acc[k / 2][4 * c + p][k % 2 * 2];
            w[p] = pack(two[0], two[1]);
          }
          de[piece(row, 8 * side + 4 * c + at.t)] = make_uint4(w[0], w[1], w[2], w[3]);
        }
      }
    }
    read(tile + step);
    barrier(1 + group, GROUP);
    const uint4* x = states + buffer * PIECES;
#pragma unroll
    for (int k = 0; k < ROWS; k += 16) {
      word a[4][4];
#pragma unroll
      for (int m = 0; m < 4; m++) {
        load_transposed(a[m], left_operand(change, k, 8 * half + 2 * m, at.lane));
        if (m / 2 == side) {  // column m adds up
          word one = at.g == m ? ONES : 0;
          mma(ones, a[m][0], a[m][1], a[m][2], a[m][3], one, one);
        }
      }
#pragma unroll
      for (int n = 0; n < 4; n++) {
        word b[4];
        load_transposed(b, right_operand(x, k, 8 * side + 2 * n, at.lane));
#pragma unroll
        for (int m = 0; m < 4; m++) {
          mma(total[m][2 * n], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
          mma(total[m][2 * n + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
        }
      }
    }
  }
  float* share = shares + (size_t)(blockIdx.x * GROUPS + group) * (WIDTH + 1) * WIDTH;
#pragma unroll
  for (int m = 0; m < 4; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int unit = 64 * half + 16 * m + 8 * r + at.g;
#pragma unroll
      for (int n = 0; n < 8; n++)
        *(float2*)&share[unit * WIDTH + 64 * side + 8 * n + 2 * at.t] = make_float2(total[m][n][2 * r], total[m][n][2 * r + 1]);
    }
  if (at.t == side)
#pragma unroll
    for (int k = 0; k < 4; k++)
      share[WIDTH * WIDTH + 64 * half + 16 * (2 * side + k % 2) + 8 * (k / 2) + at.g] = ones[k];
}

// SiLU and its derivative.
__device__ __forceinline__ float silu(float u) {
  float half = 0.5f * u;
  return fmaf(half, tangent(half), half);
}

// A warp's rows and bases as mma's left operand: lane 4 g + t has bases 2 t, 2 t + 1 and 8 more of its rows.
extern "C" __global__ void __launch_bounds__(EMBEDDING_FORWARD_WARPS * 32, 1)
embedding_forward(const float* distance, const float* centers, const float* bandwidth, const unsigned short* weight1,
                  const float* bias1, const unsigned short* weight2, const float* bias2, uint4* out, int pairs) {
  extern __shared__ uint4 shared[];
  __shared__ float first_bias[WIDTH], second_bias[WIDTH];
  __shared__ uint2 first[16 * 32];
  Lane at;
  fill(shared, weight2);
  for (int k = threadIdx.x; k < 16 * 32; k += blockDim.x) {
    const unsigned short* row = weight1 + feature(k / 32, k % 32 / 4) * BASES + 2 * (k % 4);
    first[k] = make_uint2(*(const word*)row, *(const word*)(row + 8));
  }
  for (int f = threadIdx.x; f < WIDTH; f += blockDim.x) first_bias[f] = bias1[f], second_bias[f] = bias2[f];
  __syncthreads();
  const uint4* fragments = shared + at.lane;
  float inverse = 1.0f / bandwidth[0], center[4];
#pragma unroll
  for (int k = 0; k < 4; k++) center[k] = -inverse * centers[2 * at.t + k % 2 + 8 * (k / 2)];
  int tiles = (pairs + 31) / 32, step = gridDim.x * EMBEDDING_FORWARD_WARPS;
  int tile = blockIdx.x * EMBEDDING_FORWARD_WARPS + threadIdx.x / 32;
  float next[4];
  auto read = [&](int tile) {
#pragma unroll
    for (int k = 0; k < 4; k++) next[k] = distance[min(32 * tile + 8 * k + at.g, pairs - 1)];
  };
  if (tile < tiles) read(tile);
  for (; tile < tiles; tile += step) {
    word basis[4][2];
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
      for (int p = 0; p < 2; p++) {
        float x = fmaf(next[k], inverse, center[2 * p]), y = fmaf(next[k], inverse, center[2 * p + 1]);
        basis[k][p] = pack(__expf(-x * x), __expf(-y * y));
      }
    if (tile + step < tiles) read(tile + step);
    float acc[2][16][4];
#pragma unroll
    for (int q = 0; q < 16; q++) {
      float2 b = *(const float2*)&second_bias[32 * (q / 4) + 8 * at.t + 2 * (q % 4)];
#pragma unroll
      for (int i = 0; i < 2; i++) acc[i][q][0] = acc[i][q][2] = b.x, acc[i][q][1] = acc[i][q][3] = b.y;
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
      word x[4][4];  // the hidden layer's 32 features of chunk c
#pragma unroll
      for (int p = 0; p < 4; p++) {
        float2 b = *(const float2*)&first_bias[32 * c + 8 * at.t + 2 * p];
        uint2 w = first[(4 * c + p) * 32 + at.lane];
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float u[4] = {b.x, b.y, b.x, b.y};
          mma(u, basis[2 * i][0], basis[2 * i + 1][0], basis[2 * i][1], basis[2 * i + 1][1], w.x, w.y);
          x[2 * i][p] = pack(silu(u[0]), silu(u[1]));
          x[2 * i + 1][p] = pack(silu(u[2]), silu(u[3]));
        }
      }
#pragma unroll
      for (int q = 0; q < 16; q++) {
        uint4 b = fragments[(q * 4 + c) * 32];
#pragma unroll
        for (int i = 0; i < 2; i++) {
          mma(acc[i][q], x[2 * i][0], x[2 * i + 1][0], x[2 * i][1], x[2 * i + 1][1], b.x, b.y);
          mma(acc[i][q], x[2 * i][2], x[2 * i + 1][2], x[2 * i][3], x[2 * i + 1][3], b.z, b.w);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
      int row = 32 * tile + 8 * k + at.g;
      word y[16];
#pragma unroll
      for (int q = 0; q < 16; q++) y[q] = pack(acc[k / 2][q][k % 2 * 2], acc[k / 2][q][k % 2 * 2 + 1]);
      if (row < pairs) put(out + piece(row, at.t), y);
    }
  }
}

// Turned around, features x rows: warp w of a group has features 32 w to 32 w + 31 of the hidden layer for all rows. A
// result is then what the sums over rows want as operand. Of the sums, the group's share is the second weight's 128 rows,
// the first one's 16 rows of bases, both biases, and the gradients of the centers and of the bandwidth by basis.
constexpr int EMBEDDING_SHARE = WIDTH * (WIDTH + BASES + 2) + 2 * BASES;

extern "C" __global__ void __launch_bounds__(EMBEDDING_BACKWARD_WARPS * 32, 1)
embedding_backward(const float* distance, const float* centers, const float* bandwidth, const unsigned short* weight1,
                   const float* bias1, const unsigned short* weight2, const uint4* grad, float* shares, int pairs) {
  extern __shared__ uint4 shared[];
  constexpr int GROUPS = EMBEDDING_BACKWARD_WARPS / 4;
  __shared__ uint4 forward[8 * 32], backward[8 * 32];         // the first weight: features x bases, bases x features
  __shared__ uint4 bases[GROUPS][2][ROWS * 2];                // bfloat16
  __shared__ float2 lengths[GROUPS][2][ROWS / 2];
  Lane at;
  for (int k = threadIdx.x; k < FRAGMENTS; k += blockDim.x) {  // the second weight, in x out
    int lane = k % 32, c = k / 32 % 4, row = k / 128 * 8 + lane / 4;
    const unsigned short* column = weight2 + (32 * c + 8 * (lane % 4)) * WIDTH + row;
    word w[4];
    for (int p = 0; p < 4; p++) w[p] = column[2 * p * WIDTH] | (word)column[(2 * p + 1) * WIDTH] << 16;
    shared[k] = make_uint4(w[0], w[1], w[2], w[3]);
  }
  for (int k = threadIdx.x; k < 8 * 32; k += blockDim.x) {
    int g = k % 32 / 4, t = k % 4, f = k / 32 * 16;
    auto two = [&](int unit, int base) { return *(const word*)(weight1 + unit * BASES + base); };
    forward[k] = make_uint4(two(f + g, 2 * t), two(f + g + 8, 2 * t), two(f + g, 2 * t + 8), two(f + g + 8, 2 * t + 8));
    auto column = [&](int unit, int base) {
      return weight1[unit * BASES + base] | (word)weight1[(unit + 1) * BASES + base] << 16;
    };
    backward[k] = make_uint4(column(f + 2 * t, g), column(f + 2 * t, g + 8), column(f + 2 * t + 8, g),
                             column(f + 2 * t + 8, g + 8));
  }
  int group = threadIdx.x / GROUP, warp = threadIdx.x / 32 % 4;
  float inverse = 1.0f / bandwidth[0];
  float center[2] = {-inverse * centers[at.g], -inverse * centers[at.g + 8]};
  float bias[2][2];
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int r = 0; r < 2; r++) bias[i][r] = bias1[32 * warp + 16 * i + 8 * r + at.g];
  uint4* changes = shared + FRAGMENTS + group * 2 * PIECES;
  int tiles = (pairs + ROWS - 1) / ROWS, step = gridDim.x * GROUPS;
  int tile = blockIdx.x * GROUPS + group, buffer = 0;
  // Two threads a row compute its bases; a row's two pieces change places in every other four rows, for the banks.
  int row = threadIdx.x % GROUP / 2, part = threadIdx.x % 2;
  float next = 0.0f;
  auto read = [&](int tile) { next = distance[min(ROWS * tile + row, pairs - 1)]; };
  auto prepare = [&](int buffer) {
    word w[4];
#pragma unroll
    for (int p = 0; p < 4; p++) {
      float x = (next - centers[8 * part + 2 * p]) * inverse, y = (next - centers[8 * part + 2 * p + 1]) * inverse;
      w[p] = pack(__expf(-x * x), __expf(-y * y));
    }
    bases[group][buffer][2 * row + (part ^ (row >> 2 & 1))] = make_uint4(w[0], w[1], w[2], w[3]);
    if (part == 0) ((float*)lengths[group][buffer])[row] = next;
  };
  float total[8][4][4] = {}, first[2][2][4] = {}, ones[4] = {}, of_center[2] = {}, of_bandwidth[2] = {};
  if (tile < tiles) {
    fetch(changes, grad, ROWS * tile, pairs);
    read(tile);
    prepare(0);
    read(tile + step);
  }
  __syncthreads();
  const uint4* fragments = shared + warp * FRAGMENTS / 4 + at.lane;
  for (; tile < tiles; tile += step, buffer ^= 1) {
    wait_for_copies();
    barrier(1 + group, GROUP);
    if (tile + step < tiles) {
      fetch(changes + (buffer ^ 1) * PIECES, grad, ROWS * (tile + step), pairs);
      prepare(buffer ^ 1);
      read(tile + 2 * step);
    }
    const uint4* change = changes + buffer * PIECES;
    const uint4* basis = bases[group][buffer];
    float acc[2][ROWS / 8][4] = {};
#pragma unroll
    for (int c = 0; c < 4; c++) {
      uint4 a[4];
#pragma unroll
      for (int k = 0; k < 4; k++) a[k] = fragments[(k * 4 + c) * 32];
#pragma unroll
      for (int j = 0; j < ROWS / 8; j++) {
        uint4 b = change[place(8 * j + at.g, 4 * c + at.t)];
#pragma unroll
        for (int i = 0; i < 2; i++) {
          mma(acc[i][j], a[2 * i].x, a[2 * i + 1].x, a[2 * i].y, a[2 * i + 1].y, b.x, b.y);
          mma(acc[i][j], a[2 * i].z, a[2 * i + 1].z, a[2 * i].w, a[2 * i + 1].w, b.z, b.w);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++) {
      word hidden[2][2][2], left[2][2][2];  // [16 features][8 rows][8 features]
      word rows[4];                         // bases of rows, as a right operand
      load_transposed(rows, basis + 2 * (16 * k + at.lane % 16) + (at.lane / 16 ^ (at.lane >> 2 & 1)));
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const word* mine = (const word*)(basis + 2 * (16 * k + 8 * j + at.g)) + at.t;
        int swap = at.g & 4;
        word b0 = mine[swap], b1 = mine[swap ^ 4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
          uint4 w = forward[(2 * warp + i) * 32 + at.lane];
          float u[4] = {bias[i][0], bias[i][0], bias[i][1], bias[i][1]};
          mma(u, w.x, w.y, w.z, w.w, b0, b1);
#pragma unroll
          for (int h = 0; h < 4; h++) {
            float sigma = fmaf(0.5f, tangent(0.5f * u[h]), 0.5f);
            u[h] *= sigma;
            acc[i][2 * k + j][h] *= sigma + fmaf(-u[h], sigma, u[h]);
          }
#pragma unroll
          for (int r = 0; r < 2; r++) {
            hidden[i][j][r] = pack(u[2 * r], u[2 * r + 1]);
            left[i][j][r] = pack(acc[i][2 * k + j][2 * r], acc[i][2 * k + j][2 * r + 1]);
          }
        }
        float d[4] = {};  // bases g and g + 8 of rows 2 t and 2 t + 1
#pragma unroll
        for (int i = 0; i < 2; i++) {
          uint4 w = backward[(2 * warp + i) * 32 + at.lane];
          mma(d, w.x, w.y, w.z, w.w, transpose(left[i][j][0]), transpose(left[i][j][1]));
        }
        float2 length = lengths[group][buffer][8 * k + 4 * j + at.t];
#pragma unroll
        for (int r = 0; r < 2; r++) {
          float x = fmaf(length.x, inverse, center[r]), y = fmaf(length.y, inverse, center[r]);
          float of_x = d[2 * r] * low(rows[2 * r + j]) * x, of_y = d[2 * r + 1] * high(rows[2 * r + j]) * y;
          of_center[r] += of_x + of_y;
          of_bandwidth[r] = fmaf(of_x, x, fmaf(of_y, y, of_bandwidth[r]));
        }
      }
#pragma unroll
      for (int i = 0; i < 2; i++) {
        word one = at.g == i ? ONES : 0;
        mma(first[i][0], left[i][0][0], left[i][0][1], left[i][1][0], left[i][1][1], rows[0], rows[1]);
        mma(first[i][1], left[i][0][0], left[i][0][1], left[i][1][0], left[i][1][1], rows[2], rows[3]);
        mma(ones, left[i][0][0], left[i][0][1], left[i][1][0], left[i][1][1], one, one);
      }
#pragma unroll
      for (int m = 0; m < 8; m++) {
        word a[4];
        load_transposed(a, left_operand(change, 16 * k, 2 * m, at.lane));
        if (m / 2 == warp) {
          word one = at.g == 2 + m % 2 ? ONES : 0;
          mma(ones, a[0], a[1], a[2], a[3], one, one);
        }
#pragma unroll
        for (int n = 0; n < 4; n++)
          mma(total[m][n], a[0], a[1], a[2], a[3], hidden[n / 2][0][n % 2], hidden[n / 2][1][n % 2]);
      }
    }
  }
  float* share = shares + (size_t)(blockIdx.x * GROUPS + group) * EMBEDDING_SHARE;
#pragma unroll
  for (int m = 0; m < 8; m++)
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
      for (int r = 0; r < 2; r++)
        *(float2*)&share[(16 * m + 8 * r + at.g) * WIDTH + 32 * warp + 8 * n + 2 * at.t] =
            make_float2(total[m][n][2 * r], total[m][n][2 * r + 1]);
  share += WIDTH * WIDTH;
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int unit = 32 * warp + 16 * i + 8 * r + at.g;
#pragma unroll
      for (int k = 0; k < 4; k++) share[(8 * (k / 2) + 2 * at.t + k % 2) * WIDTH + unit] = first[i][k / 2][2 * r + k % 2];
      // Columns 0 and 1 are the first bias's, 2 and 3 the second's.
      if (at.t < 2) share[(BASES + at.t) * WIDTH + unit] = ones[2 * r + i];
    }
  share += WIDTH * (BASES + 2);
  // Over the rows' four lanes, then over the group's warps.
  float* sums = (float*)(changes);
  barrier(1 + group, GROUP);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float a = over_row(of_center[r]), b = over_row(of_bandwidth[r]);
    if (at.t == 0) sums[warp * 32 + 8 * r + at.g] = a, sums[warp * 32 + BASES + 8 * r + at.g] = b;
  }
  barrier(1 + group, GROUP);
  if (warp == 0) {
    float sum = 0;
    for (int k = 0; k < 4; k++) sum += sums[k * 32 + at.lane];
    share[at.lane] = sum * 2.0f * inverse;
  }
}
