// Partition crossover of many tours, one block an instance, one warp a base: the rules are those of `crossover.py`. Of a tour
// that is offered only the corners matter, the cities at which the two tours differ: between them the base is walked in one
// step. Lengths are whole numbers, so that sums are exact in any order.
// (`search.cu` merges in the room of its neighbor lists, less than this needs.)
//
// Control flow is that of the whole warp, and what one lane writes to shared memory the others see after `__syncwarp`.
#define ROLLED _Pragma("unroll 1")

typedef unsigned short City;
typedef long long Length;

struct Merge {
  const double2* place;
  Length* gain;  // of corners, like the three that follow
  uint2* differing;  // where the edges lead that one tour alone has: ahead and behind, then those of the other tour
  word* link;  // two corners to go on to, as chosen
  City *corner, *part;  // its city; the lowest city of its part
  City *tour, *position;  // the base
  City *after, *before, *index;  // of cities: the other tour's neighbors; the corner they are
  double scale;
  int n, rule, free_city, lane;

  __device__ Merge(char* memory, const double2* places, double units, int cities, int how, bool is_free)
      : place(places), scale(units), n(cities), rule(how), free_city(is_free ? cities - 1 : -1) {
    int padded = (cities + 7) / 8 * 8;
    gain = (Length*)memory, differing = (uint2*)(gain + padded), link = (word*)(differing + padded);
    corner = (City*)(link + padded), part = corner + padded, tour = part + padded, position = tour + padded;
    after = position + padded, before = after + padded, index = before + padded;
    lane = threadIdx.x % 32;
  }

  __device__ Length distance(int i, int j) const {
    if (i == free_city || j == free_city) return 0;
    double2 a = place[i], b = place[j];
    double d = length(a.x - b.x, a.y - b.y);
    if (rule == 1) d = floor(d + 0.5);
    if (rule == 2) d = ceil(d);
    return whole_number(d * scale);
  }
  __device__ Length sum(Length x) const {
    for (int mask = 16; mask; mask /= 2) x += shuffle(x, mask);
    return x;
  }
  __device__ __forceinline__ int next(int p) const { return tour[p + 1 < n ? p + 1 : 0]; }
  __device__ __forceinline__ int previous(int p) const { return tour[p > 0 ? p - 1 : n - 1]; }

  __device__ void load(const City* cities) {
    __syncwarp();
    ROLLED
    for (int p = lane; p < n; p += 32) tour[p] = cities[p], position[cities[p]] = p;
    __syncwarp();
  }
  __device__ void save(City* cities) const {
    ROLLED
    for (int p = lane; p < n; p += 32) cities[p] = tour[p];
    __syncwarp();
  }
  __device__ Length length_of_tour() const {
    Length all = 0;
    ROLLED
    for (int p = lane; p < n; p += 32) all += distance(tour[p], next(p));
    return sum(all);
  }

  // Write down the neighbors in another tour; whether it differs.
  __device__ bool enter(const City* other) {
    bool differs = false;
    __syncwarp();
    ROLLED
    for (int p = lane; p < n; p += 32) {
      int a = other[p], b = other[p + 1 < n ? p + 1 : 0];
      after[a] = b, before[b] = a;
      int steps = abs((int)position[a] - (int)position[b]);
      differs |= steps != 1 && steps != n - 1;
    }
    bool any = votes(differs);
    __syncwarp();
    return any;
  }
  // Number the corners in the order of the base; how many there are.
  __device__ int find_corners() {
    int corners = 0;
    ROLLED
    for (int first = 0; first < n; first += 32) {
      int p = first + lane, city = 0;
      bool is_corner = false;
      if (p < n) {
        city = tour[p];
        int ahead = next(p), behind = previous(p), a = after[city], b = before[city];
        is_corner = !((ahead == a || ahead == b) && (behind == a || behind == b));
      }
      word who = votes(is_corner);
      int k = corners + __popc(who & ((1u << lane) - 1));
      if (is_corner) corner[k] = part[k] = city, index[city] = k;
      corners += __popc(who);
    }
    __syncwarp();
    ROLLED
    for (int k = lane; k < corners; k += 32) {
      int city = corner[k], p = position[city], ahead = next(p), behind = previous(p), a = after[city], b = before[city];
      bool keeps_ahead = ahead == a || ahead == b, keeps_behind = behind == a || behind == b;
      bool keeps_a = a == ahead || a == behind, keeps_b = b == ahead || b == behind;
      int up = k + 1 < corners ? k + 1 : 0, down = k > 0 ? k - 1 : corners - 1;
      link[k] = up | down << 16;
      differing[k] = {(word)(keeps_ahead ? k : up) | (keeps_behind ? k : down) << 16,
                      (word)(keeps_a ? k : index[a]) | (keeps_b ? k : index[b]) << 16};
      gain[k] = (keeps_ahead ? 0 : distance(city, ahead)) - (keeps_a ? 0 : distance(city, a));
    }
    __syncwarp();
    return corners;
  }
  // Corners joined by edges of one tour alone get the lowest of their cities.
  __device__ void find_parts(int corners) {
    bool moved = true;
    while (votes(moved)) {
      moved = false;
      ROLLED
      for (int first = 0; first < corners; first += 32) {
        int k = first + lane, own = 0, low = 0;
        if (k < corners) {
          uint2 to = differing[k];
          own = part[k];
          low = min(min((int)part[to.x & 0xffff], (int)part[to.x >> 16]), min((int)part[to.y & 0xffff], (int)part[to.y >> 16]));
          low = min(own, min(low, (int)part[index[low]]));
        }
        __syncwarp();  // all have read
        if (low < own) part[k] = low, moved = true;
        __syncwarp();
      }
    }
  }
  // The corners next to one whose part is taken from the other tour: along the edge that both have, if there is one.
  __device__ word other_link(int k, int corners) const {
    word base = differing[k].x, other = differing[k].y, up = k + 1 < corners ? k + 1 : 0, down = k > 0 ? k - 1 : corners - 1;
    bool keeps_ahead = (base & 0xffff) == k, keeps_behind = base >> 16 == k;
    if (!keeps_ahead && !keeps_behind) return other;
    word to = (other & 0xffff) == k ? other >> 16 : other & 0xffff;
    return (keeps_ahead ? up : down) | to << 16;
  }
  __device__ void choose(int label, int corners, bool is_other) {
    ROLLED
    for (int k = lane; k < corners; k += 32)
      if (part[k] == label) {
        int up = k + 1 < corners ? k + 1 : 0, down = k > 0 ? k - 1 : corners - 1;
        link[k] = is_other ? other_link(k, corners) : up | down << 16;
      }
    __syncwarp();
  }
  // Corners met on the way around.
  __device__ int go_around(int corners) const {
    int at = 0, from = -1, steps = 0;
    ROLLED
    do {
      word to = link[at];
      int low = to & 0xffff, high = to >> 16, on = low == from ? high : low;
      from = at, at = on, steps++;
    } while (at != 0 && steps < corners);
    return at == 0 ? steps : corners + 1;
  }
  // Write the chosen links into the base.
  __device__ void rebuild(int corners) {
    City* order = after;
    int at = 0, from = -1, met = 0;
    ROLLED
    for (int step = 0; step < corners; step++) {
      word to = link[at];
      int low = to & 0xffff, high = to >> 16, on = low == from ? high : low;
      int p = position[corner[at]], q = position[corner[on]], count = 1;
      bool up = on == (at + 1 < corners ? at + 1 : 0), down = on == (at > 0 ? at - 1 : corners - 1);
      if (up) count = q > p ? q - p : q - p + n;
      if (down) count = p > q ? p - q : p - q + n;
      ROLLED
      for (int k = lane; k < count; k += 32) {
        int r = up ? p + k : p - k;
        order[met + k] = tour[r < 0 ? r + n : r < n ? r : r - n];
      }
      met += count, from = at, at = on;
    }
    load(order);
  }
  // Take the better parts of another tour; whether there are any.
  __device__ bool take(const City* other, Length least) {
    if (n < 5 || !enter(other)) return false;
    int corners = find_corners(), last = -1;
    bool any = false;
    find_parts(corners);
    while (true) {  // parts in the order of their lowest cities
      word lowest_left = ~0u;
      ROLLED
      for (int k = lane; k < corners; k += 32)
        if (part[k] > last) lowest_left = min(lowest_left, (word)part[k]);
      lowest_left = lowest(lowest_left);
      if (lowest_left == ~0u) break;
      last = lowest_left;
      Length all = 0;
      ROLLED
      for (int k = lane; k < corners; k += 32)
        if (part[k] == last) all += gain[k];
      if (sum(all) <= least) continue;
      choose(last, corners, true);
      bool is_tour = go_around(corners) == corners;
      __syncwarp();
      any |= is_tour;
      if (!is_tour) choose(last, corners, false);
    }
    if (any) rebuild(corners);
    return any;
  }
  // Offer all tours until none has helped since the last that did.
  __device__ void take_all(const City* tours, int count, int passes, Length least) {
    int vain = 0, offers = passes * count;
    ROLLED
    for (int offer = 0, k = 0; offer < offers && vain < count; offer++) {
      vain = take(tours + (size_t)k * n, least) ? 0 : vain + 1;
      k = k + 1 < count ? k + 1 : 0;
    }
  }
};

// For each instance, a block: places (instances, n), tours (instances, most, n), of which the first of `counts` (instances) are
// there. The first `bases` take the better parts of all, then, in further rounds, of one another: `grown` (instances, rounds, bases,
// n). The shortest, by `lengths` (instances, bases), is `merged` (instances, n). A length is a whole number of units, `scales` of
// them make a distance of one; gains of `least` are none. `rule` 1 and 2: distances rounded, and rounded up. The last city may be
// free, and has no place then. Shared memory: the places, then `bytes` a warp.
#ifdef MERGE_WARPS
extern "C" __global__ void __launch_bounds__(MERGE_WARPS * 32)
merge(const double2* places, const double* scales, const unsigned short* tours, const int* counts, unsigned short* grown,
      long long* lengths, unsigned short* merged, int most, int n, int bases, int passes, int rounds, int least, int rule, int is_free,
      int bytes) {
  extern __shared__ uint4 shared[];
  int warp = threadIdx.x / 32, cities = n - is_free;
  size_t instance = blockIdx.x;
  double2* own = (double2*)shared;
  for (int k = threadIdx.x; k < cities; k += blockDim.x) own[k] = places[instance * cities + k];
  __syncthreads();
  Merge merge((char*)(own + n) + warp * bytes, own, scales[instance], n, rule, is_free);
  int count = counts[instance];
  tours += instance * most * n, grown += instance * rounds * bases * n, lengths += instance * bases;
  for (int turn = 0; turn < rounds; turn++) {
    for (int base = warp; base < bases; base += MERGE_WARPS) {
      merge.load(tours + (size_t)base * n);
      merge.take_all(tours, count, passes, least);
      merge.save(grown + (size_t)base * n);
      if (turn < rounds - 1) continue;
      Length all = merge.length_of_tour();
      if (merge.lane == 0) lengths[base] = all;
    }
    __syncthreads();
    tours = grown, grown += (size_t)bases * n, count = bases;
  }
  int shortest = 0;
  for (int base = 1; base < bases; base++)
    if (lengths[base] < lengths[shortest]) shortest = base;
  for (int p = threadIdx.x; p < n; p += blockDim.x) merged[instance * n + p] = tours[(size_t)shortest * n + p];
}
#endif
