// Lengths of `rows` tours, one warp each: edges are added one by one in tour order, as `decode/costs.py` does on the CPU. Places
// (instances, n) and tours (instances, count, n); `rule` 1 and 2: distances rounded, and rounded up. The first `edges` edges count.
#ifdef TOUR_LENGTHS_WARPS
extern "C" __global__ void __launch_bounds__(TOUR_LENGTHS_WARPS * 32)
tour_lengths(const double2* places, const long long* tours, double* lengths, int rows, int count, int n, int edges, int rule) {
  int lane = threadIdx.x % 32, row = blockIdx.x * TOUR_LENGTHS_WARPS + threadIdx.x / 32;
  if (row >= rows) return;
  const double2* own = places + (size_t)(row / count) * n;
  const long long* tour = tours + (size_t)row * n;
  double total = 0.0;
  for (int first = 0; first < edges; first += 32) {
    int p = first + lane;
    double edge = 0.0;
    if (p < edges) {
      double2 a = own[tour[p]], b = own[tour[p + 1 < n ? p + 1 : 0]];
      edge = length(a.x - b.x, a.y - b.y);
      if (rule == 1) edge = floor(edge + 0.5);
      if (rule == 2) edge = ceil(edge);
    }
    int held = edges - first < 32 ? edges - first : 32;
    for (int k = 0; k < held; k++) total += from_lane(edge, k);
  }
  if (lane == 0) lengths[row] = total;
}
#endif
