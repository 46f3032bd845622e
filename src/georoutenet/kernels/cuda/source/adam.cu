// The end of a training step: the norm of all gradients, then Adam, all parameters in one buffer. The gradients lie where
// the backward pass left them. A block takes pieces of parameters in turn, four of a piece for each of its threads.
struct Piece {
  const float* gradient;  // the tensor's; null where it has none, and keeps its values
  int place;              // of the piece in the buffers, a multiple of 4
  int first, size;        // of the tensor's elements: the piece's first one, and how many there are
  int columns, row_stride, column_stride;
};
struct Plan {  // what a step multiplies with
  float decay, rate, root, weight;
};
constexpr double OLD_MOMENTUM = 0.9, OLD_VARIANCE = 0.999;  // what stays of them in a step
constexpr float NEW_MOMENTUM = 1.0 - OLD_MOMENTUM, NEW_VARIANCE = 1.0 - OLD_VARIANCE, FLOOR = 1e-8;
constexpr int BLOCKS = 4;  // blocks on a multiprocessor: enough to have all memory busy

// This thread's share of the gradient, zeros beyond its end and where there is none; false if all is beyond.
__device__ __forceinline__ bool read(float (&g)[4], const Piece& piece) {
  int k = piece.first + 4 * threadIdx.x;
  if (k >= piece.size) return false;
  bool is_dense = piece.columns == piece.size && piece.column_stride == 1 && (size_t)piece.gradient % 16 == 0;
  if (is_dense && piece.gradient && k + 4 <= piece.size) {
    float4 v = *(const float4*)(piece.gradient + k);
    g[0] = v.x, g[1] = v.y, g[2] = v.z, g[3] = v.w;
    return true;
  }
#pragma unroll
  for (int j = 0; j < 4; j++) {
    int row = (k + j) / piece.columns, column = (k + j) % piece.columns;
    bool is_there = piece.gradient && k + j < piece.size;
    g[j] = is_there ? piece.gradient[row * piece.row_stride + column * piece.column_stride] : 0.0f;
  }
  return true;
}

// The sum over the block's threads, always in the same order; each of them gets it.
__device__ __forceinline__ float sum_of_block(float x) {
  __shared__ float sums[32];
  for (int mask = 16; mask; mask /= 2) x += shuffle(x, mask);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < blockDim.x / 32; warp++) sum += sums[warp];
  return sum;
}

#ifdef ADAM_NORM_WARPS
// parts: the sum of squares of each block. Counts the step, and makes its plan; `settings` are the weights' decay, and
// that of their average.
extern "C" __global__ void __launch_bounds__(ADAM_NORM_WARPS * 32, 2 * BLOCKS)
adam_norm(const Piece* pieces, float* parts, long long* step, const float* rate, const double* settings, Plan* plan,
          int count) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    double t = ++*step;
    plan->decay = 1.0 - *rate * settings[0];
    plan->rate = *rate / (1.0 - pow(OLD_MOMENTUM, t));
    plan->root = 1.0 / sqrt(1.0 - pow(OLD_VARIANCE, t));
    plan->weight = max(1.0 / t, 1.0 - settings[1]);
  }
  float sum = 0.0f, g[4];
  for (int k = blockIdx.x; k < count; k += gridDim.x)
    if (read(g, pieces[k])) sum += g[0] * g[0] + g[1] * g[1] + (g[2] * g[2] + g[3] * g[3]);
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}
#endif

#ifdef ADAM_UPDATE_WARPS
// Scales the gradients to a norm of at most `clip` (any, if it is 0), and adds the step's values and the norm to totals.
extern "C" __global__ void __launch_bounds__(ADAM_UPDATE_WARPS * 32, BLOCKS)
adam_update(const Piece* pieces, float4* parameters, float4* momentum, float4* variance, float4* average,
            const float* parts, const Plan* plan, const float* clip, const float* values, double* totals, int count,
            int part_count, int has_average, int value_count) {
  float norm = 0.0f;
  for (int k = threadIdx.x; k < part_count; k += blockDim.x) norm += parts[k];
  norm = sqrtf(sum_of_block(norm));
  if (blockIdx.x == 0)
    for (int k = threadIdx.x; k <= value_count; k += blockDim.x) totals[k] += k < value_count ? values[k] : norm;
  float scale = *clip > 0.0f ? *clip / (norm + 1e-6f) : 1.0f;
  if (scale > 1.0f) scale = 1.0f;  // a norm that is no number stays one
  Plan now = *plan;
  float g[4];
  for (int k = blockIdx.x; k < count; k += gridDim.x) {
    if (!read(g, pieces[k])) continue;
    int place = pieces[k].place / 4 + threadIdx.x;
    bool is_given = pieces[k].gradient;
    float4 p4 = parameters[place], m4 = momentum[place], v4 = variance[place], a4;
    if (has_average) a4 = average[place];
    float *p = &p4.x, *m = &m4.x, *v = &v4.x, *a = &a4.x;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (is_given) {
        float x = g[j] * scale;
        m[j] += NEW_MOMENTUM * (x - m[j]);
        v[j] = (float)OLD_VARIANCE * v[j] + NEW_VARIANCE * x * x;
        p[j] = p[j] * now.decay - now.rate * m[j] / (sqrtf(v[j]) * now.root + FLOOR);
      }
      if (has_average) a[j] += now.weight * (p[j] - a[j]);
    }
    parameters[place] = p4, momentum[place] = m4, variance[place] = v4;
    if (has_average) average[place] = a4;
  }
}
#endif
