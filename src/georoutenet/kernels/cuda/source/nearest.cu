// All distances of an instance, and the nearest cities of every city. A warp takes a city: lane l has the cities l, l + 32,
// ... and knows which of them is the nearest one that is not taken yet.

#ifdef NEAREST_WARPS
// From coordinates (nodes), n a time of one instance: distance (nodes, n) and near (nodes, width) within reach; index (nodes,
// width), the city itself and then its nearest ones, the lower index first of equal distances; mask (nodes, width), up to
// all within `boundary` times the distance of the k-th; slots (nodes, pitch), where each city is in index if it is not
// masked, or width. `reach` and `boundary` have the bits of a float. Shared memory: 4 n + 2 pitch bytes a warp.
extern "C" __global__ void __launch_bounds__(NEAREST_WARPS * 32, 1)
nearest(const float2* coords, float* distance, int* index, unsigned char* mask, float* near, word* slots, int nodes, int n,
        int k, int width, int pitch, int reach, int boundary) {
  extern __shared__ uint4 shared[];
  const word NONE = 0xffffffffu;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, node = blockIdx.x * NEAREST_WARPS + warp;
  if (node >= nodes) return;
  word* row = (word*)shared + warp * (n + pitch / 2);  // distances are not negative: their bits are ordered as they are
  word* slot = row + n;
  float limit = __uint_as_float(reach);
  int itself = node % n;
  const float2* all = coords + (node - itself);
  float2 here = all[itself];
  for (int j = lane; j < n; j += 32) {
    float d = length(here.x - all[j].x, here.y - all[j].y);
    distance[(size_t)node * n + j] = d > limit ? limit : d;
    row[j] = j == itself ? NONE : __float_as_uint(d);
  }
  for (int j = lane; j < pitch / 2; j += 32) slot[j] = width * 0x10001;

  word least, at;
  auto look = [&] {
    least = at = NONE;
    for (int j = lane; j < n; j += 32)
      if (row[j] < least) least = row[j], at = j;
  };
  look();
  word far = 0, city = itself;  // of the w-th nearest, in lane w
  for (int w = 1; w < width; w++) {
    word low = lowest(least), first = lowest(least == low ? at : NONE);
    if (lane == w) far = low, city = first;
    if (least == low && at == first) {
      row[at] = NONE;
      look();
    }
  }
  word last = __float_as_uint(__uint_as_float(from_lane(far, k)) * __uint_as_float(boundary));
  bool inside = lane < width && far <= last;
  __syncwarp();
  if (inside) ((unsigned short*)slot)[city] = lane;
  if (lane < width) {
    float d = __uint_as_float(far);
    index[(size_t)node * width + lane] = city;
    mask[(size_t)node * width + lane] = inside;
    near[(size_t)node * width + lane] = d > limit ? limit : d;
  }
  __syncwarp();
  for (int j = lane; j < pitch / 2; j += 32) slots[(size_t)node * (pitch / 2) + j] = slot[j];
}
#endif
