// Sums of parts: out[g][k] = sum over p of in[g][p][k] in float32, of several arrays in one launch. A thread takes four
// neighboring columns; where there are many parts, the 8 threads t, t + 32, ... of a block share them.
constexpr int PART_LANES = 8;

struct Parts {
  const float4* in;
  void* out;
  int columns, size, parts;  // columns of all groups, and of one, in fours

  __device__ int lanes() const { return parts > 2 * PART_LANES ? PART_LANES : 1; }
  __device__ int blocks() const { return (columns * lanes() + (int)blockDim.x - 1) / (int)blockDim.x; }
  __device__ float4 sum(int column, int first, int step) const {
    const float4* from = in + (size_t)(column / size) * parts * size + column % size;
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
    for (int p = first; p < parts; p += step) {
      float4 v = from[(size_t)p * size];
      total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
    }
    return total;
  }
  __device__ void put(int column, float4 v, bool in_bf16) const {
    if (in_bf16)
      ((uint2*)out)[column] = make_uint2(pack(v.x, v.y), pack(v.z, v.w));
    else
      ((float4*)out)[column] = v;
  }
};

#ifdef PART_SUMS_WARPS
// Bit k of `in_bf16`: the sums of array k are rounded to bfloat16. Arrays without columns are none.
extern "C" __global__ void __launch_bounds__(PART_SUMS_WARPS * 32, 1)
part_sums(const float4* in0, void* out0, int columns0, int size0, int parts0, const float4* in1, void* out1, int columns1,
          int size1, int parts1, const float4* in2, void* out2, int columns2, int size2, int parts2, const float4* in3,
          void* out3, int columns3, int size3, int parts3, int in_bf16) {
  extern __shared__ uint4 shared[];
  Parts arrays[4] = {{in0, out0, columns0, size0, parts0}, {in1, out1, columns1, size1, parts1},
                     {in2, out2, columns2, size2, parts2}, {in3, out3, columns3, size3, parts3}};
  int block = blockIdx.x, which = 0;
  while (which < 3 && block >= arrays[which].blocks()) block -= arrays[which++].blocks();
  const Parts& array = arrays[which];
  bool rounded = in_bf16 >> which & 1;
  int thread = threadIdx.x;
  if (array.lanes() == 1) {
    int column = block * blockDim.x + thread;
    if (column < array.columns) array.put(column, array.sum(column, 0, 1), rounded);
    return;
  }
  float4(*sums)[32] = (float4(*)[32])shared;
  int column = block * 32 + thread % 32, share = thread / 32;
  if (column < array.columns) sums[share][thread % 32] = array.sum(column, share, PART_LANES);
  __syncthreads();
  if (share == 0 && column < array.columns) {
    float4 total = sums[0][thread];
    for (int k = 1; k < PART_LANES; k++) {
      float4 v = sums[k][thread];
      total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
    }
    array.put(column, total, rounded);
  }
}
#endif
