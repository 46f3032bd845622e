// Both ends of the edge tower backward, see edge_ends.cu: where warps multiply each for itself.
constexpr int BASES = 16;
constexpr word ONES = 0x3f803f80u;
constexpr float ROOT = 1.2011224f;  // of log2 e: exp(-x^2) = 2^-(ROOT x)^2

// The sums over rows that are the gradient of a 128 x 128 matrix stay in the registers of a group of four
// warps, 128 of every thread. A group takes 64 rows at a time, in shared memory; a block has two groups.
constexpr int ROWS = 64;
constexpr int GROUP = 128;  // threads
constexpr int GROUPS = 2;
constexpr int PIECES = ROWS * WIDTH / 8;  // of 16 bytes, of one group's rows

// Where a row's piece of 16 bytes is: 8 rows of one piece, and 2 rows of 4 pieces, are in different banks.
__device__ __forceinline__ int place(int row, int piece) { return row * 16 + (piece ^ ((row & 1) << 2 | (row >> 1 & 3))); }

// Lane l's part of rows 0 to 15 of pieces 0 and 1, for load_matrices: mma's left operand, rows x features; for
// load_transposed: two right operands, rows x features. Exclusive or with p: of pieces p and p + 1.
__device__ __forceinline__ int operand(int lane) { return place(lane % 16, lane / 16); }
// For load_transposed: the left operand, features x rows.
__device__ __forceinline__ int transposed_operand(int lane) { return place(lane % 8 + lane / 16 * 8, lane / 8 % 2); }

// Right operands in x 128 outs, two steps of 16 ins a fragment: read(out, in) is the word of ins in and in + 1. The outs'
// order is that of the tiles.
template <class Read>
__device__ void fill_right(uint4* fragments, Read read) {
  for (int k = threadIdx.x; k < FRAGMENTS; k += blockDim.x) {
    int f = feature(k / 128, k % 32 / 4), in = 32 * (k / 32 % 4) + 2 * (k % 4);
    fragments[k] = make_uint4(read(f, in), read(f, in + 8), read(f, in + 16), read(f, in + 24));
  }
}
// Products of 32 rows with 8 TILES outs.
template <int TILES>
__device__ __forceinline__ void multiply(float (&acc)[2][TILES][4], const uint4* shared, int operand,
                                         const uint4* fragments) {
#pragma unroll
  for (int c = 0; c < 4; c++) {
    word a[2][2][4];
#pragma unroll
    for (int k = 0; k < 4; k++)
      load_matrices(a[k / 2][k % 2], shared + (operand ^ (4 * c + 2 * (k % 2))) + k / 2 * 256);
#pragma unroll
    for (int q = 0; q < TILES; q++) {
      uint4 b = fragments[(q * 4 + c) * 32];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        mma(acc[i][q], a[i][0][0], a[i][0][1], a[i][0][2], a[i][0][3], b.x, b.y);
        mma(acc[i][q], a[i][1][0], a[i][1][1], a[i][1][2], a[i][1][3], b.z, b.w);
      }
    }
  }
}
// 64 rows for a group, zeros after the last one.
__device__ __forceinline__ void fetch(uint4* rows, const uint4* states, int first, int pairs) {
  int row = threadIdx.x % GROUP / 16, piece = threadIdx.x % 16;
  uint4* to = rows + place(row, piece);
  const uint4* from = states + (size_t)(first + row) * 16 + piece;
#pragma unroll
  for (int k = 0; k < ROWS / 8; k++) copy16(to + k * 128, from + k * 128, first + row + 8 * k < pairs);
  commit_copies();
}

// The second group's sums are added to the first's.
template <int COUNT>
__device__ __forceinline__ void join(float* sums, float* shared, int group) {
  float* at = shared + threadIdx.x % GROUP;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < COUNT; k++)
    if (group) at[k * GROUP] = sums[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < COUNT; k++)
    if (!group) sums[k] += at[k * GROUP];
}

// With c the gradient of a logit where a unit is on, else 0: the gradient of e is c (last W), and each block's share of
// c^T e is 128 rows, of the sums of c one more; the parameters' gradients follow from them. Then, the sum of the
// logits' gradients.
constexpr int LOGIT_SHARE = (WIDTH + 1) * WIDTH + 4;

#ifdef LOGIT_BACKWARD_WARPS
extern "C" __global__ void __launch_bounds__(LOGIT_BACKWARD_WARPS * 32, 1)
logit_backward(const uint4* e, const unsigned short* weight, const float* last, const word* on, const float* grad,
               uint4* de, float* shares, int pairs) {
  extern __shared__ uint4 shared[];
  Lane at;
  fill_right(shared, [&](int f, int out) {
    float w0 = low(weight[out * WIDTH + f]), w1 = low(weight[(out + 1) * WIDTH + f]);
    return pack(w0 * last[out], w1 * last[out + 1]);
  });
  __syncthreads();
  int group = threadIdx.x / GROUP, half = threadIdx.x / 64 % 2, side = threadIdx.x / 32 % 2;
  // Of a group's 64 rows a warp has one half, and of the result one side; of c^T e, half and side of the features. The
  // warps of both sides have the same units, each begins with its own quarter and adds that up.
  const uint4* fragments = shared + side * FRAGMENTS / 2 + at.lane;
  int first = FRAGMENTS + group * 4 * PIECES;  // three tiles of states, two of them on their way; c
  uint4 *states = shared + first, *change = states + 3 * PIECES;
  int tiles = (pairs + ROWS - 1) / ROWS, step = gridDim.x * GROUPS;
  int tile = blockIdx.x * GROUPS + group, buffer = 0;
  // Places in shared memory of the operands: c's rows, its units, and the states' features.
  int rows = first + 3 * PIECES + half * 512 + operand(at.lane);
  int units = first + 3 * PIECES + (transposed_operand(at.lane) ^ (8 * half + 4 * side));
  int features = first + (operand(at.lane) ^ 8 * side);
  int row = 16 * (2 * half + side) + at.g;  // and 8 more: the warp's 16 rows of c
  word bits[2];
  float value[2];
  auto read = [&](int tile) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int pair = ROWS * tile + row + 8 * r;
      bool inside = pair < pairs;
      bits[r] = inside ? on[(size_t)pair * 4 + at.t] : 0;
      value[r] = inside ? grad[pair] : 0.0f;
    }
  };
  float total[4][8][4] = {}, ones[4] = {}, sum = 0.0f;
  if (tile < tiles) fetch(states, e, ROWS * tile, pairs), read(tile);
  if (tile < tiles) fetch(states + PIECES, e, ROWS * (tile + step), pairs);
  for (; tile < tiles; tile += step, buffer = buffer == 2 ? 0 : buffer + 1) {
    wait_for_copies<1>();
    barrier(1 + group, GROUP);  // the states are here, and nobody reads what will be written now
    fetch(states + (buffer ? buffer - 1 : 2) * PIECES, e, ROWS * (tile + 2 * step), pairs);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      word same = pack(value[r], value[r]);
      sum += value[r];
#pragma unroll
      for (int c = 0; c < 4; c++) {
        word even = bits[r] << 2 * c, odd = even << 1;
        change[place(row + 8 * r, 4 * c + at.t)] =
            make_uint4(permute<0x9988>(even, 0) & same, permute<0xbbaa>(even, 0) & same, permute<0x9988>(odd, 0) & same,
                       permute<0xbbaa>(odd, 0) & same);
      }
    }
    barrier(1 + group, GROUP);
    {
      float acc[2][8][4] = {};
      multiply(acc, shared, rows, fragments);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        int pair = ROWS * tile + 32 * half + 8 * k + at.g;
        if (pair >= pairs) continue;
#pragma unroll
        for (int c = 0; c < 2; c++) {
          word w[4];
#pragma unroll
          for (int p = 0; p < 4; p++) w[p] = pack(acc[k / 2][4 * c + p][k % 2 * 2], acc[k / 2][4 * c + p][k % 2 * 2 + 1]);
          de[piece(pair, 8 * side + 4 * c + at.t)] = make_uint4(w[0], w[1], w[2], w[3]);
        }
      }
    }
    read(tile + step);
    int x = features + buffer * PIECES;
#pragma unroll
    for (int k = 0; k < ROWS; k += 16) {
      word a[4][4];
#pragma unroll
      for (int m = 0; m < 4; m++) load_transposed(a[m], shared + (units ^ 2 * m) + k * 16);
#pragma unroll
      for (int m = 0; m < 2; m++) {  // column m adds up
        word one = at.g == m ? ONES : 0;
        mma(ones, a[m][0], a[m][1], a[m][2], a[m][3], one, one);
      }
#pragma unroll
      for (int n = 0; n < 4; n++) {
        word b[4];
        load_transposed(b, shared + (x ^ 2 * n) + k * 16);
#pragma unroll
        for (int m = 0; m < 4; m++) {
          mma(total[m][2 * n], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
          mma(total[m][2 * n + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
        }
      }
    }
  }
  wait_for_copies();
  join<128>(&total[0][0][0], (float*)shared, group);
  join<4>(ones, (float*)shared, group);
  join<1>(&sum, (float*)shared, group);
  if (group) return;
  float* share = shares + (size_t)blockIdx.x * LOGIT_SHARE;
#pragma unroll
  for (int m = 0; m < 4; m++)
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int unit = 64 * half + 16 * (m ^ 2 * side) + 8 * r + at.g;
#pragma unroll
      for (int n = 0; n < 8; n++)
        *(float2*)&share[unit * WIDTH + 64 * side + 8 * n + 2 * at.t] = make_float2(total[m][n][2 * r], total[m][n][2 * r + 1]);
    }
  if (at.t == 0)
#pragma unroll
    for (int k = 0; k < 4; k++)
      share[WIDTH * WIDTH + 64 * half + 16 * (k % 2 ^ 2 * side) + 8 * (k / 2) + at.g] = ones[k];
  for (int mask = 4; mask < 32; mask *= 2) sum += shuffle(sum, mask);
  float* sums = (float*)shared + GROUP;
  if (at.lane == 0) sums[threadIdx.x / 32] = sum;
  barrier(1, GROUP);
  if (threadIdx.x == 0) share[LOGIT_SHARE - 4] = sums[0] + sums[1] + sums[2] + sums[3];
}
#endif

// Transposed, features x rows: warp w of a group has features 32 w to 32 w + 31 of the hidden layer for all rows. A
// result is then what the sums over rows want as operand. Of the sums, a block's share is the second weight's 128 rows,
// the first one's 16 rows of bases, both biases, and the gradients of the centers and of the bandwidth, that in 8 parts.
constexpr int PART = 32;  // rows whose results a warp holds at a time
constexpr int EMBEDDING_SHARE = WIDTH * (WIDTH + BASES + 2) + BASES + 8;

#ifdef EMBEDDING_BACKWARD_WARPS
extern "C" __global__ void __launch_bounds__(EMBEDDING_BACKWARD_WARPS * 32, 1)
embedding_backward(const float* distance, const float* centers, const float* bandwidth, const unsigned short* weight1,
                   const float* bias1, const unsigned short* weight2, const uint4* grad, float* shares, int pairs) {
  extern __shared__ uint4 shared[];
  __shared__ uint4 forward[8 * 32], backward[8 * 32];         // the first weight: features x bases, bases x features
  __shared__ uint4 bases[GROUPS][2][ROWS * 2];                // bfloat16
  __shared__ float2 lengths[GROUPS][2][ROWS / 2];
  __shared__ float scaled[BASES];
  __shared__ float4 bias[8 * 32];
  Lane at;
  for (int k = threadIdx.x; k < FRAGMENTS; k += blockDim.x) {  // the second weight, in x out
    // Lane t has outs 8 t to 8 t + 7 of 32, as the other operand; 16 ins in two steps of four of them.
    int f = k / 256 * 16 + k % 32 / 4, out = 32 * (k / 64 % 4) + 8 * (k % 4) + 4 * (k / 32 % 2);
    auto two = [&](int f, int out) { return weight2[out * WIDTH + f] | (word)weight2[(out + 1) * WIDTH + f] << 16; };
    shared[k] = make_uint4(two(f, out), two(f + 8, out), two(f, out + 2), two(f + 8, out + 2));
  }
  for (int k = threadIdx.x; k < 8 * 32; k += blockDim.x) {
    int g = k % 32 / 4, t = k % 4, f = k / 32 * 16;
    // Half of the product and half of the bias: SiLU wants no more.
    auto two = [&](int unit, int base) {
      const unsigned short* w = weight1 + unit * BASES + base;
      return pack(0.5f * low(w[0]), 0.5f * low(w[1]));
    };
    float b0 = 0.5f * bias1[f + g], b1 = 0.5f * bias1[f + g + 8];
    bias[k] = make_float4(b0, b0, b1, b1);
    forward[k] = make_uint4(two(f + g, 2 * t), two(f + g + 8, 2 * t), two(f + g, 2 * t + 8), two(f + g + 8, 2 * t + 8));
    auto column = [&](int unit, int base) {
      return weight1[unit * BASES + base] | (word)weight1[(unit + 1) * BASES + base] << 16;
    };
    backward[k] = make_uint4(column(f + 2 * t, g), column(f + 2 * t, g + 8), column(f + 2 * t + 8, g),
                             column(f + 2 * t + 8, g + 8));
  }
  int group = threadIdx.x / GROUP, warp = threadIdx.x / 32 % 4;
  float inverse = 1.0f / bandwidth[0], scale = ROOT * inverse;
  if (threadIdx.x < BASES) scaled[threadIdx.x] = -scale * centers[threadIdx.x];
  float center[2] = {-inverse * centers[at.g], -inverse * centers[at.g + 8]};
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
      float x = fmaf(next, scale, scaled[8 * part + 2 * p]), y = fmaf(next, scale, scaled[8 * part + 2 * p + 1]);
      w[p] = pack(power2(-x * x), power2(-y * y));
    }
    bases[group][buffer][2 * row + (part ^ (row >> 2 & 1))] = make_uint4(w[0], w[1], w[2], w[3]);
    if (part == 0) ((float*)lengths[group][buffer])[row] = next;
  };
  // Places in shared memory of the operands.
  int own = (int)(changes - shared) + place(at.g, at.t);
  int transposed = (int)(changes - shared) + (transposed_operand(at.lane) ^ 4 * warp);
  int base_rows = at.lane % 16 * 2 + (at.lane / 16 ^ at.lane / 4 % 2), row_bases = at.g * 8 + at.t + (at.g & 4);
  float total[8][4][4] = {}, first[2][2][4] = {}, ones[4] = {}, of_center[2] = {}, of_bandwidth = 0.0f;
  __syncthreads();
  if (tile < tiles) {
    fetch(changes, grad, ROWS * tile, pairs);
    read(tile);
    prepare(0);
    read(tile + step);
  }
  const uint4* fragments = shared + warp * FRAGMENTS / 4 + at.lane;
  for (; tile < tiles; tile += step, buffer ^= 1) {
    wait_for_copies();
    barrier(1 + group, GROUP);
    if (tile + step < tiles) {
      fetch(changes + (buffer ^ 1) * PIECES, grad, ROWS * (tile + step), pairs);
      prepare(buffer ^ 1);
      read(tile + 2 * step);
    }
#pragma unroll 1
    for (int start = 0; start < ROWS; start += PART) {
      int mine = own + buffer * PIECES + start * 16, outs = transposed + buffer * PIECES + start * 16;
      const uint4* basis = bases[group][buffer] + start * 2;
      float acc[2][PART / 8][4] = {};
#pragma unroll
      for (int c = 0; c < 4; c++) {
        uint4 a[4];
#pragma unroll
        for (int k = 0; k < 4; k++) a[k] = fragments[(k / 2 * 8 + 2 * c + k % 2) * 32];
#pragma unroll
        for (int j = 0; j < PART / 8; j++) {
          uint4 b = shared[(mine ^ 4 * c) + j * 128];
#pragma unroll
          for (int i = 0; i < 2; i++) mma(acc[i][j], a[2 * i].x, a[2 * i].y, a[2 * i].z, a[2 * i].w, b.x, b.y);
#pragma unroll
          for (int i = 0; i < 2; i++)
            mma(acc[i][j], a[2 * i + 1].x, a[2 * i + 1].y, a[2 * i + 1].z, a[2 * i + 1].w, b.z, b.w);
        }
      }
#pragma unroll
      for (int k = 0; k < PART / 16; k++) {
        word hidden[2][2][2], left[2][2][2];  // [16 features][8 rows][8 features]
        word rows[4];                         // bases of rows, as a right operand
        load_transposed(rows, basis + k * 32 + base_rows);
#pragma unroll
        for (int j = 0; j < 2; j++) {
          const word* two = (const word*)(basis + k * 32 + j * 16);
          word b0 = two[row_bases], b1 = two[row_bases ^ 4];
#pragma unroll
          for (int i = 0; i < 2; i++) {
            uint4 w = forward[(2 * warp + i) * 32 + at.lane];
            float4 b = bias[(2 * warp + i) * 32 + at.lane];
            float u[4] = {b.x, b.y, b.z, b.w};
            mma(u, w.x, w.y, w.z, w.w, b0, b1);
#pragma unroll
            for (int h = 0; h < 4; h++) {
              float half = u[h], slope = tangent(half);
              float sigma = fmaf(0.5f, slope, 0.5f);
              u[h] = fmaf(half, slope, half);
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
          float2 length = lengths[group][buffer][start / 2 + 8 * k + 4 * j + at.t];
#pragma unroll
          for (int r = 0; r < 2; r++) {
            float x = fmaf(length.x, inverse, center[r]), y = fmaf(length.y, inverse, center[r]);
            float of_x = d[2 * r] * low(rows[2 * r + j]) * x, of_y = d[2 * r + 1] * high(rows[2 * r + j]) * y;
            of_center[r] += of_x + of_y;
            of_bandwidth = fmaf(of_x, x, fmaf(of_y, y, of_bandwidth));
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
          load_transposed(a, shared + (outs ^ 2 * m) + k * 256);
          if (m < 2) {
            word one = at.g == 2 + m ? ONES : 0;
            mma(ones, a[0], a[1], a[2], a[3], one, one);
          }
#pragma unroll
          for (int n = 0; n < 4; n++)
            mma(total[m][n], a[0], a[1], a[2], a[3], hidden[n / 2][0][n % 2], hidden[n / 2][1][n % 2]);
        }
      }
    }
  }
  join<128>(&total[0][0][0], (float*)shared, group);
  join<16>(&first[0][0][0], (float*)shared, group);
  join<4>(ones, (float*)shared, group);
  join<2>(of_center, (float*)shared, group);
  join<1>(&of_bandwidth, (float*)shared, group);
  if (group) return;
  float* share = shares + (size_t)blockIdx.x * EMBEDDING_SHARE;
#pragma unroll
  for (int m = 0; m < 8; m++)
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
      for (int r = 0; r < 2; r++)
        *(float2*)&share[(16 * (m ^ 2 * warp) + 8 * r + at.g) * WIDTH + 32 * warp + 8 * n + 2 * at.t] =
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
  float* sums = (float*)changes;
  float a = over_row(of_center[0]), b = over_row(of_center[1]), c = over_row(of_bandwidth);
  if (at.t == 0) sums[24 * warp + at.g] = a, sums[24 * warp + 8 + at.g] = b, sums[24 * warp + 16 + at.g] = c;
  barrier(1 + group, GROUP);
  if (warp == 0 && at.lane < 24)
    share[at.lane] = 2.0f * inverse * (sums[at.lane] + sums[24 + at.lane] + sums[48 + at.lane] + sums[72 + at.lane]);
}
#endif
