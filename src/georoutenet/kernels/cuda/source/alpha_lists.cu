// Held and Karp's ascent on whole instances, and neighbor lists of the cities of least alpha (`search/one_tree.py` says what both
// are). A warp takes an instance: Prim's method with lanes over the cities that are not in the tree yet. The last city is no part
// of the tree: it has the two shortest edges to others, one of them fixed where an edge is; it may be free (at distance zero).
#ifdef ALPHA_LISTS_WARPS
constexpr int NEAR = 8;  // cities in a list
constexpr int AMONG = 16;  // in a list to choose from, the nearest but the last, which is left out for the tree's edge
constexpr float ENDLESS = 1e30f;
constexpr word NONE = 0xffffffffu;

struct Tree {
  float4* node;  // x, y, penalty, and the length, under penalties, of the edge to the tree
  word *tag, *degree;  // city and, in the upper half, slot of its parent; of each city, before in the upper half
  int count, rule, lane;  // of cities in the tree

  __device__ Tree(char* memory, int cities, int padded, int how)
      : node((float4*)memory), tag((word*)(node + padded)), degree(tag + padded), count(cities), rule(how), lane(threadIdx.x % 32) {}

  __device__ __forceinline__ float distance(float x, float y) const {
    if (rule == 0) return rough_length(x, y);
    float d = length(x, y);
    return rule == 1 ? floorf(d + 0.5f) : ceilf(d);
  }
  __device__ __forceinline__ float cost(float4 a, float4 b) const { return a.z + b.z + distance(a.x - b.x, a.y - b.y); }
  static __device__ __forceinline__ word ordered(float x) {
    word bits = __float_as_uint(x);
    return bits ^ ((word)((int)bits >> 31) | 0x80000000u);
  }
  // Grow the shortest tree from the city in the first slot on. The one that joins trades places with the last that is outside:
  // in the end they stand in the order in which they joined, the first in the last slot.
  __device__ void grow() {
    for (int k = lane; k < count; k += 32) node[k].w = ENDLESS;
    int at = 0;
    for (int left = count - 1; left >= 0; left--) {
      __syncwarp();
      float4 joined = node[at];
      __syncwarp();  // all have read
      if (lane == 0) {
        word own = tag[at];
        node[at] = node[left], tag[at] = tag[left], node[left] = joined, tag[left] = own;
      }
      __syncwarp();
      float least = 2 * ENDLESS;
      int where = 0;
      for (int k = lane; k < left; k += 32) {
        float4 other = node[k];
        float now = cost(joined, other);
        if (now < other.w) node[k].w = other.w = now, ((unsigned short*)tag)[2 * k + 1] = left;
        if (other.w < least) least = other.w, where = k;
      }
      word key = ordered(least);
      at = lowest(key == lowest(key) ? where : NONE);
    }
    __syncwarp();
  }
  // The last city's shortest edge to a slot but `except`.
  template <typename Value>
  __device__ int shortest(Value value, int except) const {
    float least = 2 * ENDLESS;
    int where = 0;
    for (int k = lane; k < count; k += 32) {
      float now = value(k);
      if (k != except && now < least) least = now, where = k;
    }
    word key = ordered(least);
    return lowest(key == lowest(key) ? where : NONE);
  }
};

// Lists (instances, most - is_free, 8) of places (instances, most), of which `sizes` are cities, from lists to choose from
// (instances, most - is_free, 16), nearest first. Shared memory: 24 bytes for each of `most` a warp.
extern "C" __global__ void __launch_bounds__(ALPHA_LISTS_WARPS * 32, 1)
alpha_lists(const float2* places, const int* sizes, const unsigned short* among, unsigned short* near, int instances, int most,
            int iterations, int rule, int is_fixed, int is_free) {
  extern __shared__ uint4 shared[];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, instance = blockIdx.x * ALPHA_LISTS_WARPS + warp;
  if (instance >= instances) return;
  int last = sizes[instance] - 1, padded = (most + 3) / 4 * 4;
  Tree tree((char*)shared + 24 * warp * padded, last, padded, rule);
  float4* node = tree.node;
  word *tag = tree.tag, *degree = tree.degree;
  const float2* place = places + (size_t)instance * most;
  float2 here = place[last];
  for (int k = lane; k < last; k += 32) node[k] = {place[k].x, place[k].y, 0.0f, 0.0f}, tag[k] = k, degree[k] = 0;
  auto to_last = [&](int k) {
    if (is_fixed && (tag[k] & 0xffff) == last - 1) return -ENDLESS;
    float4 there = node[k];
    return is_free ? there.z : there.z + tree.distance(there.x - here.x, there.y - here.y);
  };
  float first_step = 0.0f;
  for (int i = 0; i < iterations; i++) {
    __syncwarp();
    tree.grow();
    int one = tree.shortest(to_last, -1), two = tree.shortest(to_last, one);
    if (i == 0) {  // half a mean edge
      for (int k = lane; k < last - 1; k += 32) first_step += node[k].w;
      for (int mask = 16; mask; mask /= 2) first_step += shuffle(first_step, mask);
      first_step = 0.5f * first_step / last;
    }
    for (int k = lane; k < last; k += 32) {
      atomicAdd(degree + (tag[k] & 0xffff), (k < last - 1) + (k == one) + (k == two));
      if (k < last - 1) atomicAdd(degree + (tag[tag[k] >> 16] & 0xffff), 1);
    }
    __syncwarp();
    float share = (float)i / iterations, step = first_step * (1.0f - share) * (1.0f - 0.5f * share);
    for (int k = lane; k < last; k += 32) {
      int city = tag[k] & 0xffff, now = degree[city] & 0xffff, before = i ? degree[city] >> 16 : now;
      node[k].z += step * (0.6f * (now - 2) + 0.4f * (before - 2));
      degree[city] = now << 16;
    }
  }
  __syncwarp();
  tree.grow();
  float second = to_last(tree.shortest(to_last, tree.shortest(to_last, -1)));
  for (int k = lane; k < last; k += 32) degree[tag[k] & 0xffff] = k;  // the slots of the cities
  __syncwarp();
  int listed = last + 1 - is_free, k = lane % 16, given = min(AMONG - 1, listed - 1);
  for (int pair = 0; pair < listed; pair += 2) {  // a city for each half of the warp, and a lane for each other
    int city = pair + lane / 16;
    size_t row = (size_t)instance * (most - is_free) + city;
    word other = NONE, parent = NONE, key = NONE;
    if (city < listed) {
      if (city < last && degree[city] < last - 1) parent = tag[tag[degree[city]] >> 16] & 0xffff;
      other = k < given ? among[row * AMONG + k] : k == AMONG - 1 ? parent : NONE;
    }
    if (votes(k < given && other == parent) >> (lane & 16) & 0xffff && k == AMONG - 1) other = NONE;
    if (other != NONE) {
      float alpha;
      if (city == last || other == last) {
        alpha = to_last(degree[city == last ? other : city]) - second;
      } else {
        int a = degree[city], b = degree[other];
        alpha = tree.cost(node[a], node[b]);
        float longest = -ENDLESS;  // on the way between them
        while (a != b) {  // who joined later goes first
          int low = min(a, b);
          b = max(a, b), a = tag[low] >> 16, longest = fmaxf(longest, node[low].w);
        }
        alpha -= longest;
      }
      key = alpha > 0.0f ? __float_as_uint(alpha) : 0;
    }
    int rank = 0;
    for (int j = 0; j < 16; j++) {
      word its = from_lane(key, (lane & 16) | j);
      rank += its < key || (its == key && j < k);
    }
    bool is_kept = other != NONE && rank < NEAR;
    word kept = votes(is_kept) >> (lane & 16) & 0xffff;
    if (is_kept) near[row * NEAR + __popc(kept & ((1u << k) - 1))] = other;
  }
}
#endif
