// The embedding's forward pass (Eqs. rbf and edge_embedding; the head's is with the last edge update, edge_update.cu),
// and the sums of what the backward passes of embedding and head leave.
constexpr int BASES = 16;
constexpr float ROOT = 1.2011224f;  // of log2 e: exp(-x^2) = 2^-(ROOT x)^2

// The tiles of a warp, in whole numbers of warps that share a wgmma; some may be beyond the last.
struct Tiles {
  int first, last;
  __device__ Tiles(int pairs) {
    int tiles = (pairs + 16 * TOGETHER - 1) / (16 * TOGETHER), share = (tiles + gridDim.x - 1) / gridDim.x;
    first = TOGETHER * share * blockIdx.x + threadIdx.x / 32;
    last = TOGETHER * min(tiles, share * ((int)blockIdx.x + 1));
  }
};

#ifdef EMBEDDING_FORWARD_WARPS
extern "C" __global__ void __launch_bounds__(EMBEDDING_FORWARD_WARPS * 32, 1)
embedding_forward(const float* distance, const float* centers, const float* bandwidth, const unsigned short* weight1,
                  const float* bias1, const unsigned short* weight2, const float* bias2, uint4* out, int pairs) {
  alignas(128) extern __shared__ uint4 shared[];
  Lane at;
  fill(shared, weight2);
  uint4 *first = shared + FRAGMENTS, *second_bias = first + 2 * NARROW;
  // Half of the first product and half of its bias: SiLU wants no more.
  fill_narrow(first, [&](int f, int in) {
    const unsigned short* w = weight1 + f * BASES + in;
    return pack(0.5f * low(w[0]), 0.5f * low(w[1]));
  });
  fill_vector(first + NARROW, bias1, 0.5f);
  fill_vector(second_bias, bias2, 1.0f);
  publish();
  __syncthreads();
  Matrix map1 = narrow_in(first), biases1 = narrow_in(first + NARROW);
  Matrix map2 = matrix_in(shared), biases2 = narrow_in(second_bias);
  // Lane 4 g + t has bases 2 t, 2 t + 1 and 8 more of its rows.
  float scale = ROOT / bandwidth[0], center[4];
#pragma unroll
  for (int k = 0; k < 4; k++) center[k] = -scale * centers[2 * at.t + k % 2 + k / 2 * 8];
  UnitRow unit(at.t);
  float next[2];
  auto read = [&](int tile) {
#pragma unroll
    for (int r = 0; r < 2; r++) next[r] = distance[min(16 * tile + at.g + 8 * r, pairs - 1)];
  };
  Tiles mine(pairs);
  if (mine.first < mine.last) read(mine.first);
  for (int tile = mine.first; tile < mine.last; tile += EMBEDDING_FORWARD_WARPS) {
    word basis[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
      float x = fmaf(next[k % 2], scale, center[k / 2 * 2]), y = fmaf(next[k % 2], scale, center[k / 2 * 2 + 1]);
      basis[k] = pack(power2(-x * x), power2(-y * y));
    }
    float acc[16][4];
    start(acc, unit, biases1, basis, map1);
    read(tile + EMBEDDING_FORWARD_WARPS);
    finish(acc, unit, basis);
    word x[2][16];
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int q = 0; q < 16; q++) {
        float u = acc[q][2 * r], v = acc[q][2 * r + 1];
        x[r][q] = pack(fmaf(u, tangent(u), u), fmaf(v, tangent(v), v));
      }
    start(acc, unit, biases2, x, map2);
    finish(acc, unit, x);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = 16 * tile + at.g + 8 * r;
#pragma unroll
      for (int q = 0; q < 16; q++) x[r][q] = pack(acc[q][2 * r], acc[q][2 * r + 1]);
      if (row < pairs) put(out + piece(row, at.t), x[r]);
    }
  }
}
#endif

// What the blocks of a backward pass leave: of each its shares of the gradients, in rows of 128 numbers. A block adds up
// a row; each of its warps some shares, and the first one finishes it. Lane l has four numbers.
template <class Add>
__device__ __forceinline__ bool add_up(float4& total, float& other, int parts, Add add) {
  __shared__ float4 totals[16][32];
  __shared__ float others[16];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  total = make_float4(0.0f, 0.0f, 0.0f, 0.0f), other = 0.0f;
#pragma unroll 8
  for (int part = warp; part < parts; part += warps) add(part);
  totals[warp][lane] = total;
  if (lane == 0) others[warp] = other;
  __syncthreads();
  if (warp) return false;
  for (int k = 1; k < warps; k++) {
    float4 v = totals[k][lane];
    total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
    other += others[k];
  }
  return true;
}

// A row for each hidden unit: the gradient of its product c^T e, see logit_backward, and the sum of c; in the row after the
// last one, the sum of the logits' gradients. A unit that is on is weight e + bias, so these give the gradient of `last`.
constexpr int LOGIT_SHARE = (WIDTH + 1) * WIDTH + 4;

#ifdef LOGIT_TOTALS_WARPS
extern "C" __global__ void __launch_bounds__(LOGIT_TOTALS_WARPS * 32, 1)
logit_totals(const float* shares, const unsigned short* weight, const float* bias, const float* last, float* of_weight,
             float* of_bias, float* of_last, float* of_offset, int parts) {
  int unit = blockIdx.x, lane = threadIdx.x % 32;
  float4 total;
  float count;
  bool is_first = add_up(total, count, parts, [&](int part) {
    const float* share = shares + (size_t)part * LOGIT_SHARE;
    float4 v = *(const float4*)(share + unit * WIDTH + 4 * lane);
    total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
    count += share[WIDTH * WIDTH + unit];
  });
  if (!is_first) return;
  if (unit == WIDTH) {
    if (lane == 0) of_offset[0] = count;
    return;
  }
  uint2 w = *(const uint2*)(weight + unit * WIDTH + 4 * lane);
  float along = low(w.x) * total.x + high(w.x) * total.y + low(w.y) * total.z + high(w.y) * total.w;
  for (int mask = 1; mask < 32; mask *= 2) along += shuffle(along, mask);
  float l = last[unit];
  *(float4*)(of_weight + unit * WIDTH + 4 * lane) = make_float4(l * total.x, l * total.y, l * total.z, l * total.w);
  if (lane == 0) of_bias[unit] = l * count, of_last[unit] = fmaf(bias[unit], count, along);
}
#endif

// The second weight's rows, the first one's 16 columns, both biases, and 24 numbers: the centers' gradients, and 8 parts
// of the bandwidth's.
constexpr int EMBEDDING_ROWS = WIDTH + BASES + 2;
constexpr int EMBEDDING_SHARE = WIDTH * EMBEDDING_ROWS + BASES + 8;

#ifdef EMBEDDING_TOTALS_WARPS
extern "C" __global__ void __launch_bounds__(EMBEDDING_TOTALS_WARPS * 32, 1)
embedding_totals(const float* shares, float* of_centers, float* of_bandwidth, float* of_weight1, float* of_bias1,
                 float* of_weight2, float* of_bias2, int parts) {
  int row = blockIdx.x, lane = threadIdx.x % 32;
  float4 total;
  float other;
  bool is_first = add_up(total, other, parts, [&](int part) {
    if (row == EMBEDDING_ROWS && lane >= 6) return;
    float4 v = *(const float4*)(shares + (size_t)part * EMBEDDING_SHARE + row * WIDTH + 4 * lane);
    total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
  });
  if (!is_first) return;
  float* to = row < WIDTH ? of_weight2 + row * WIDTH : row == WIDTH + BASES ? of_bias1 : of_bias2;
  if (row < WIDTH || row == WIDTH + BASES || row == WIDTH + BASES + 1) {
    *(float4*)(to + 4 * lane) = total;
  } else if (row < WIDTH + BASES) {
    to = of_weight1 + 4 * lane * BASES + row - WIDTH;
    to[0] = total.x, to[BASES] = total.y, to[2 * BASES] = total.z, to[3 * BASES] = total.w;
  } else {
    if (lane < 4) *(float4*)(of_centers + 4 * lane) = total;
    float sum = total.x + total.y + total.z + total.w;
    sum += shuffle(sum, 1);
    if (lane == 4) of_bandwidth[0] = sum;
  }
}
#endif
