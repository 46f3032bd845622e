// The few numbers that a pass starts from: sorted centers of the radial bases, their bandwidth, and the weights of the
// distance in every layer. One warp does it.
constexpr float DIAGONAL = 1.41421356f;  // of the unit square
constexpr float NARROWEST = 1e-3f;

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
// How many of the centers come before this lane's.
__device__ __forceinline__ int rank(float center, int count) {
  int lane = threadIdx.x % 32, before = 0;
  for (int k = 0; k < count; k++) {
    float other = from_lane(center, k);
    before += other < center || (other == center && k < lane);
  }
  return before;
}
// One of up to six.
template <class T>
__device__ __forceinline__ T choose(int k, T a, T b, T c, T d, T e, T f) {
  return k < 3 ? k == 0 ? a : k == 1 ? b : c : k == 3 ? d : k == 4 ? e : f;
}

#ifdef BASES_WARPS
// Out: `count` centers, the bandwidth, and a number for each layer.
extern "C" __global__ void __launch_bounds__(BASES_WARPS * 32, 1)
bases(const float* centers, const float* log_bandwidth, const float* layer0, const float* layer1, const float* layer2,
        const float* layer3, const float* layer4, const float* layer5, float* out, int count, int layers) {
  int lane = threadIdx.x % 32;
  float center = lane < count ? DIAGONAL * sigmoid(centers[lane]) : 0.0f;
  int place = rank(center, count);
  if (lane < count) out[place] = center;
  if (lane == 0) out[count] = max(expf(*log_bandwidth), NARROWEST);
  if (lane < layers) {
    float x = *choose(lane, layer0, layer1, layer2, layer3, layer4, layer5);
    out[count + 1 + lane] = x > 20.0f ? x : log1pf(expf(x));
  }
}
#endif

#ifdef BASES_BACKWARD_WARPS
extern "C" __global__ void __launch_bounds__(BASES_BACKWARD_WARPS * 32, 1)
bases_backward(const float* centers, const float* log_bandwidth, const float* layer0, const float* layer1,
        const float* layer2, const float* layer3, const float* layer4, const float* layer5, const float* of_centers,
        const float* of_bandwidth, const float* of_layer0, const float* of_layer1, const float* of_layer2,
        const float* of_layer3, const float* of_layer4, const float* of_layer5, float* out, int count, int layers) {
  int lane = threadIdx.x % 32;
  float share = lane < count ? sigmoid(centers[lane]) : 0.0f;
  int place = rank(DIAGONAL * share, count);
  if (lane < count) out[lane] = of_centers[place] * DIAGONAL * share * (1.0f - share);
  if (lane == 0) {
    float bandwidth = expf(*log_bandwidth);
    out[count] = bandwidth < NARROWEST ? 0.0f : *of_bandwidth * bandwidth;
  }
  if (lane < layers) {
    float x = *choose(lane, layer0, layer1, layer2, layer3, layer4, layer5);
    out[count + 1 + lane] =
        *choose(lane, of_layer0, of_layer1, of_layer2, of_layer3, of_layer4, of_layer5) * sigmoid(x);
  }
}
#endif
