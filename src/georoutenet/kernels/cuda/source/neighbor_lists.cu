// Neighbor lists (instances, most, width) of places (instances, most), of which `sizes` are cities. Nearest first, the lower
// number first of equal distances: the nearest cities, but room is kept for one in each of the four quadrants around a city if it
// is among its `among` nearest. A warp takes a city of `cities` in all, `most` for each instance. `width`: 4 to 32. Shared memory:
// 4 bytes for each of `most` a warp.
#ifdef NEIGHBOR_LISTS_WARPS
extern "C" __global__ void __launch_bounds__(NEIGHBOR_LISTS_WARPS * 32, 1)
neighbor_lists(const float2* places, const int* sizes, unsigned short* near, int cities, int most, int width, int among) {
  extern __shared__ uint4 shared[];
  const word FAR = 0xffffffffu;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, city = blockIdx.x * NEIGHBOR_LISTS_WARPS + warp;
  if (city >= cities) return;
  int itself = city % most, n = sizes[city / most];
  if (itself >= n) return;
  word* row = (word*)shared + warp * most;
  const float2* all = places + (city - itself);
  float2 here = all[itself];
  for (int j = lane; j < n; j += 32)
    row[j] = j == itself ? FAR : __float_as_uint(length(here.x - all[j].x, here.y - all[j].y));
  word least, at;
  auto look = [&] {
    least = at = FAR;
    for (int j = lane; j < n; j += 32)
      if (row[j] < least) least = row[j], at = j;
  };
  look();
  int left = min(width, n - 1), empty = 15;  // slots, quadrants
  int kept = 0, skipped = 0, mine = 0, spare = 0;  // lane k has the k-th city that was kept, and that was skipped, with its rank
  for (int k = 0; k < min(among, n - 1) && left; k++) {
    word low = lowest(least), found = lowest(least == low ? at : FAR);
    if (at == found) {
      row[at] = FAR;
      look();
    }
    float2 there = all[found];
    int quadrant = 1 << ((there.x >= here.x) + 2 * (there.y >= here.y));
    if ((empty & quadrant) || left > __popc(empty)) {
      if (lane == kept) mine = found | k << 16;
      kept++, left--, empty &= ~quadrant;
    } else {
      if (lane == skipped) spare = found | k << 16;
      skipped++;
    }
  }
  for (int k = 0; left; k++, left--) {
    int city_and_rank = from_lane((word)spare, k);
    if (lane == kept) mine = city_and_rank;
    kept++;
  }
  int slot = 0;  // by rank
  for (int k = 0; k < kept; k++) slot += from_lane((word)mine, k) >> 16 < (word)mine >> 16;
  if (lane < kept) near[(size_t)city * width + slot] = mine & 0xffff;
  if (lane >= kept && lane < width) near[(size_t)city * width + lane] = 0;
}
#endif
