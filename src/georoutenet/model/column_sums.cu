// Sums over the rows of a bfloat16 matrix. A block has a band of 256 columns and a part of the rows, which its warps take in
// turn: a lane reads 16 bytes, 8 columns, of each.
constexpr int BAND = 256;
constexpr int AHEAD = 8;  // rows on their way

#ifdef COLUMN_SUMS_WARPS
// `stride` is in pieces of 16 bytes; block b has band b % bands and part b / bands, `chunk` rows.
extern "C" __global__ void __launch_bounds__(COLUMN_SUMS_WARPS * 32, 1)
column_sums(const uint4* x, float* sums, int rows, int stride, int bands, int chunk) {
  extern __shared__ uint4 shared[];
  float(*parts)[BAND] = (float(*)[BAND])shared;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, band = blockIdx.x % bands, part = blockIdx.x / bands;
  int last = min(rows, (part + 1) * chunk);
  float sum[8] = {};
  auto add = [&](uint4 v) {
    sum[0] += low(v.x), sum[1] += high(v.x), sum[2] += low(v.y), sum[3] += high(v.y);
    sum[4] += low(v.z), sum[5] += high(v.z), sum[6] += low(v.w), sum[7] += high(v.w);
  };
  int row = part * chunk + warp;
  const uint4* from = x + (size_t)row * stride + band * (BAND / 8) + lane;
  size_t step = (size_t)COLUMN_SUMS_WARPS * stride;
  for (; row + (AHEAD - 1) * COLUMN_SUMS_WARPS < last; row += AHEAD * COLUMN_SUMS_WARPS, from += AHEAD * step) {
    uint4 v[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) v[k] = from[k * step];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) add(v[k]);
  }
  for (; row < last; row += COLUMN_SUMS_WARPS, from += step) add(*from);
#pragma unroll
  for (int k = 0; k < 8; k++) parts[warp][32 * k + lane] = sum[k];  // column 8 lane + k: no two lanes in a bank
  __syncthreads();
  for (int column = threadIdx.x; column < BAND; column += blockDim.x) {
    float total = 0.0f;
    for (int w = 0; w < COLUMN_SUMS_WARPS; w++) total += parts[w][column % 8 * 32 + column / 8];
    sums[((size_t)part * bands + band) * BAND + column] = total;
  }
}
#endif
