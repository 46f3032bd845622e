// NAR4TSP's small work between its layers: the batch norm of the start states, and the edge maps with the norm before them
// folded in. See nar4tsp_vectors_cuda.py. A block has 32 features or columns; its warps share the rows.

typedef unsigned short half_word;

#ifdef NAR4TSP_START_NORM_WARPS
constexpr float EPSILON = 1e-5f;
// From x (rows, 128) in float32: out (rows, 128), the norm's, and moments (2, 128), mean and 1 / deviation. 4 blocks.
extern "C" __global__ void __launch_bounds__(NAR4TSP_START_NORM_WARPS * 32, 1)
nar4tsp_start_norm(const float* x, const float* gamma, const float* beta, half_word* out, float* moments, int rows) {
  extern __shared__ uint4 shared[];
  int feature = 32 * blockIdx.x + threadIdx.x % 32, warp = threadIdx.x / 32;
  x += feature;
  float mean = over_lines((float*)shared, rows, [&](int row) { return x[row * WIDTH]; }) / rows;
  float variance = over_lines((float*)shared, rows, [&](int row) {
    float away = x[row * WIDTH] - mean;
    return away * away;
  }) / rows;
  float inverse = 1.0f / sqrtf(variance + EPSILON), scale = gamma[feature] * inverse, offset = beta[feature];
  for (int row = warp; row < rows; row += NAR4TSP_START_NORM_WARPS)
    out[row * WIDTH + feature] = pack((x[row * WIDTH] - mean) * scale + offset, 0.0f);
  if (warp == 0) moments[feature] = mean, moments[WIDTH + feature] = inverse;
}
#endif

#ifdef NAR4TSP_START_NORM_BACKWARD_WARPS
// From grad (rows, 128): of_x (rows, 128), and gradients (2, 128) of gamma and beta. 4 blocks.
extern "C" __global__ void __launch_bounds__(NAR4TSP_START_NORM_BACKWARD_WARPS * 32, 1)
nar4tsp_start_norm_backward(const half_word* grad, const float* x, const float* gamma, const float* moments,
                            float* of_x, float* gradients, int rows) {
  extern __shared__ uint4 shared[];
  int feature = 32 * blockIdx.x + threadIdx.x % 32, warp = threadIdx.x / 32;
  x += feature, grad += feature;
  float mean = moments[feature], inverse = moments[WIDTH + feature];
  float total = over_lines((float*)shared, rows, [&](int row) { return low(grad[row * WIDTH]); });
  float along = over_lines((float*)shared, rows, [&](int row) {
    return low(grad[row * WIDTH]) * ((x[row * WIDTH] - mean) * inverse);
  });
  float scale = gamma[feature] * inverse, level = total / rows, slope = along / rows * inverse;
  for (int row = warp; row < rows; row += NAR4TSP_START_NORM_BACKWARD_WARPS)
    of_x[row * WIDTH + feature] = scale * (low(grad[row * WIDTH]) - level - slope * (x[row * WIDTH] - mean));
  if (warp == 0) gradients[feature] = along, gradients[WIDTH + feature] = total;
}
#endif

#ifdef NAR4TSP_FOLD_WARPS
// From weight (128, 128), scale, offset, constant and bias (128): folded (128, 128), the weight times the scale, in float32
// or, if is_half, half of it in bfloat16; and out (128), weight (offset + constant) + bias. A warp has a row.
extern "C" __global__ void __launch_bounds__(NAR4TSP_FOLD_WARPS * 32, 1)
nar4tsp_fold(const float4* weight, const float4* scale, const float4* offset, const float4* constant, const float* bias,
             void* folded, float* out, int is_half) {
  int row = blockIdx.x * NAR4TSP_FOLD_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= WIDTH) return;
  float4 w = weight[row * 32 + lane], s = scale[lane], a = offset[lane], b = constant[lane];
  float sum = w.x * (a.x + b.x) + w.y * (a.y + b.y) + w.z * (a.z + b.z) + w.w * (a.w + b.w);
#pragma unroll
  for (int mask = 16; mask; mask /= 2) sum += shuffle(sum, mask);
  if (lane == 0) out[row] = sum + bias[row];
  s.x *= w.x, s.y *= w.y, s.z *= w.z, s.w *= w.w;
  if (is_half)
    ((uint2*)folded)[row * 32 + lane] = make_uint2(pack(0.5f * s.x, 0.5f * s.y), pack(0.5f * s.z, 0.5f * s.w));
  else
    ((float4*)folded)[row * 32 + lane] = s;
}
#endif

#ifdef NAR4TSP_FOLD_BACKWARD_WARPS
// From the gradients of folded and out: of_weight (128, 128), of_scale (128), and of_offset (128), which is the constant's,
// too. 4 blocks.
extern "C" __global__ void __launch_bounds__(NAR4TSP_FOLD_BACKWARD_WARPS * 32, 1)
nar4tsp_fold_backward(const void* of_folded, const float* of_out, const float* weight, const float* scale,
                      const float* offset, const float* constant, float* of_weight, float* of_scale, float* of_offset,
                      int is_half) {
  extern __shared__ uint4 shared[];
  int column = 32 * blockIdx.x + threadIdx.x % 32, warp = threadIdx.x / 32;
  auto grad = [&](int row) {
    int place = row * WIDTH + column;
    return is_half ? 0.5f * low(((const half_word*)of_folded)[place]) : ((const float*)of_folded)[place];
  };
  float factor = scale[column], level = offset[column] + constant[column];
  float along = over_lines((float*)shared, WIDTH, [&](int row) {
    float g = grad(row), b = of_out[row];
    of_weight[row * WIDTH + column] = g * factor + b * level;
    return g * weight[row * WIDTH + column];
  });
  float across = over_lines((float*)shared, WIDTH, [&](int row) { return of_out[row] * weight[row * WIDTH + column]; });
  if (warp == 0) of_scale[column] = along, of_offset[column] = across;
}
#endif
