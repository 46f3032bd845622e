// Stored weights to what kernels read: matrices rounded to bf16, their numbers in the order of patterns, and vectors
// one behind the other.
constexpr int PIECES = WIDTH * WIDTH / 8;  // of 16 bytes: a matrix
constexpr int PARTS = 4;  // of a matrix, a block each

__device__ __forceinline__ float stored(const float* first, const float* second, word place) {
  return (place & 0x8000u ? second : first)[place & 0x7fffu];
}
__device__ __forceinline__ word two(const float* first, const float* second, word indices) {
  return pack(stored(first, second, indices & 0xffffu), stored(first, second, indices >> 16));
}

#ifdef ARRANGE_WARPS
// For each of `count` matrices two addresses and the number of a pattern: 16 bits an element, its place in the second
// matrix if the highest is set, or else in the first. For each of `rows` vectors of 128 floats its address; 0: zeros.
extern "C" __global__ void __launch_bounds__(ARRANGE_WARPS * 32, 1)
arrange(const long long* matrices, const long long* vectors, const uint4* patterns, uint4* fragments, float* values,
        int count, int rows) {
  int block = blockIdx.x;
  if (block < PARTS * count) {
    const long long* matrix = matrices + 3 * (block / PARTS);
    const float *first = (const float*)matrix[0], *second = (const float*)matrix[1];
    const uint4* pattern = patterns + matrix[2] * PIECES;
    uint4* out = fragments + (size_t)(block / PARTS) * PIECES;
    int begin = block % PARTS * (PIECES / PARTS);
#pragma unroll 2
    for (int k = begin + threadIdx.x; k < begin + PIECES / PARTS; k += blockDim.x) {
      uint4 p = pattern[k];
      out[k] = make_uint4(two(first, second, p.x), two(first, second, p.y), two(first, second, p.z),
                          two(first, second, p.w));
    }
    return;
  }
  int lane = threadIdx.x % 32, row = (block - PARTS * count) * ARRANGE_WARPS + threadIdx.x / 32;
  if (row >= rows) return;
  const float* vector = (const float*)vectors[row];
  for (int f = lane; f < WIDTH; f += 32) values[(size_t)row * WIDTH + f] = vector ? vector[f] : 0.0f;
}
#endif
