// Local search, one walk a warp: chained 3-opt steps over neighbor lists, kicks, walks away from the best tour and back. The
// rules are those of the search on a CPU (`search/steps.py`, `kernels.py`, `crossover.py`), but for the kicks, most of which change
// four edges near one another, and for the order in which steps are looked at: 32 lanes look at as many at a time, and the best of
// them is taken.
#include "tour.cuh"

constexpr int LONG_KICK = 16;  // of this number of kicks one is of segments in a row
constexpr int UNITS = 64;  // entries of the table of -log(u)
constexpr float NEVER = 1e30f;  // what it would cost to take out a fixed edge
constexpr int CLOSED = 4;  // added to the kind of a step that closes the tour
constexpr int NONE = 0xffff;  // no part
constexpr float DRIFT = 64.0f;  // tolerances that the gains of a walk may be off

struct Step {
  float gain;  // of a closed tour, or what is left open
  int kind, t3, t4, t5, t6;
};

template <bool PLAIN>  // Euclidean distances and no fixed edge
struct Search : Tour {
  int rule, fixed, free_city;
  float tolerance;

  __device__ Search(char* memory, int cities, int width, int how, int bound, int is_free, float least)
      : Tour(memory, cities, width), rule(how), fixed(bound), free_city(is_free ? cities - 1 : -1), tolerance(least) {}

  __device__ __forceinline__ float distance(int i, int j) const {
    float2 a = place[i], b = place[j];
    if (PLAIN) return rough_length(a.x - b.x, a.y - b.y);
    float d = length(a.x - b.x, a.y - b.y);
    if (rule == 1) d = floorf(d + 0.5f);
    if (rule == 2) d = ceilf(d);
    if (i == free_city || j == free_city) d = 0.0f;
    return i >= fixed && j >= fixed ? -NEVER : d;  // the fixed edge is that of the last two cities
  }
  // A sequential 3-opt step from the open edge t1 t2, as `find_step` of `search/steps.py`. Lane 16 h + 8 s + k looks at the
  // neighbors 2 j + h of t2, its side s, and neighbor k of t4. Of the first pair j with steps that make the tour shorter the
  // best is taken; if there is none, and it may stay open, the one that leaves the most gain. Kind -1: none.
  __device__ Step find(int t1, int t2, bool forward, float gain, bool may_stay_open) {
    int side = lane / 8 % 2, second = lane % 8, ahead = forward ? 1 : -1, p2 = position[t2];
    float open = tolerance;
    word open34 = 0, open56 = 0;
    ROLLED
    for (int pair = 0; pair < width; pair += 2) {
      int first = pair + lane / 16;
      float closed = tolerance;
      word closed34 = 0, closed56 = 0;
      bool in_reach = false;
      if (first < width) {
        int t3 = near[NEAR * t2 + first], p3 = position[t3];
        float gain1 = gain - distance(t2, t3);
        in_reach = gain1 > tolerance;
        if (in_reach && !are_beside(p2, p3)) {
          int p4 = beside(p3, side ? ahead : -ahead), t4 = tour[p4];
          float gain2 = gain1 + distance(t3, t4);
          if (side == 0 && second == 0) {
            float g = gain2 - distance(t4, t1);
            if (g > closed) closed = g, closed34 = t3 | 3 << 12 | t4 << 16, closed56 = t1 | t2 << 16;
          }
          int t5 = second < width ? near[NEAR * t4 + second] : t3, p5 = position[t5];
          float gain3 = gain2 - distance(t4, t5);
          if (gain3 > tolerance && !are_beside(p4, p5)) {
            int rank3 = wrapped(ahead * (p3 - p2)), rank5 = wrapped(ahead * (p5 - p2));
            int kind = side, last = side == 0 ? (t5 == t1 ? -1 : 0) : (rank5 > rank3 ? -1 : t5 == t2 ? 1 : 2);
            ROLLED
            for (; kind <= last; kind++) {
              int t6 = tour[beside(p5, (kind == 0 ? rank5 < rank3 : kind == 1) ? ahead : -ahead)];
              if (kind == 0 && t6 == t4) continue;
              float left = gain3 + distance(t5, t6), g = left - distance(t6, t1);
              word t34 = t3 | kind << 12 | t4 << 16, t56 = t5 | t6 << 16;
              if (g > closed) closed = g, closed34 = t34, closed56 = t56;
              if (left > open) open = left, open34 = t34, open56 = t56;
            }
          }
        }
      }
      if (votes(closed > tolerance)) return best(closed, closed34, closed56, CLOSED);
      if (!votes(in_reach)) break;
    }
    if (may_stay_open && votes(open > tolerance)) return best(open, open34, open56, 0);
    return {0.0f, -1, 0, 0, 0, 0};
  }
  // The step of the lane with the highest gain, the lowest lane among equals.
  __device__ Step best(float gain, word t34, word t56, int closed) const {
    word key = ~__float_as_uint(gain);  // gains are positive: their bits are ordered as they are
    word most = lowest(key), winners = votes(key == most);
    int winner = __popc((winners & -winners) - 1);
    t34 = from_lane(t34, winner), t56 = from_lane(t56, winner);
    return {__uint_as_float(~most), (int)(t34 >> 12 & 3) + closed, (int)(t34 & 0xfff), (int)(t34 >> 16),
            (int)(t56 & 0xffff), (int)(t56 >> 16)};
  }
  // A 3-opt move as up to three 2-opt moves: of kind 3 t1 t2 t4 t3; of kind 0 that and t1 t4 t6 t5; of kind 1 t1 t2 t3 t4, then
  // t1 t3 t6 t5 and t3 t5 t2 t4; of kind 2 t1 t2 t6 t5 and t2 t5 t3 t4.
  __device__ void make(int t1, int t2, const Step& s) {
    int kind = s.kind % CLOSED, count = kind == 3 ? 1 : kind == 1 ? 3 : 2;
    ROLLED
    for (int k = 0; k < count; k++) {
      int a = t1, b = t2, c = s.t6, d = s.t5;
      if (k == 0) {
        if (kind != 2) c = kind == 1 ? s.t3 : s.t4, d = kind == 1 ? s.t4 : s.t3;
      } else if (kind == 2) {
        a = t2, b = s.t5, c = s.t3, d = s.t4;
      } else if (k == 1) {
        b = kind == 1 ? s.t3 : s.t4;
      } else {
        a = s.t3, b = s.t5, c = t2, d = s.t4;
      }
      exchange(a, b, c, d);
    }
  }
  // Shorten the tour by chains of up to `depth` steps (at most 5) that start at an edge of t1; the gain, 0 if none was found.
  __device__ float improve(int t1, int depth) {
    int mark = logged;
    ROLLED
    for (int start = 0; start < 2; start++) {
      int t2 = following(t1, start == 0), touched = 0;  // lane 6 l + k has city k of level l
      float gain = distance(t1, t2);
      ROLLED
      for (int level = 0; level < depth; level++) {
        Step s = find(t1, t2, following(t1, true) == t2, gain, level + 1 < depth);
        if (s.kind < 0) break;
        make(t1, t2, s);
        int k = lane - 6 * level;
        if (k >= 0 && k < 6) touched = k == 0 ? t1 : k == 1 ? t2 : k == 2 ? s.t3 : k == 3 ? s.t4 : k == 4 ? s.t5 : s.t6;
        if (s.kind >= CLOSED) {
          push(touched, 6 * (level + 1));
          return s.gain;
        }
        t2 = s.t6, gain = s.gain;
      }
      undo(mark);
    }
    return 0.0f;
  }

  // Double bridge: the segments in the order d, c, b, by four reversals. Returns the gain; nothing is done where a fixed edge
  // would be cut.
  __device__ float kick(Segments s) {
    int all = s.b + s.c + s.d;
    auto edge = [&](int step, int& from, int& to) {
      int p = s.first + step < n ? s.first + step : s.first + step - n;
      from = tour[p], to = tour[p + 1 < n ? p + 1 : 0];
    };
    int from, to;
    edge(lane == 0 ? 0 : lane == 1 ? s.b : lane == 2 ? s.b + s.c : all, from, to);
    float removed = distance(from, to), total = 0.0f;
    for (int k = 0; k < 4; k++) total += from_lane(removed, k);
    int its_to = from_lane((word)to, lane % 4);
    push(lane < 4 ? from : its_to, 8);
    if (total < 0.0f) return 0.0f;
    ROLLED
    for (int k = 0; k < 4; k++) {  // all of them, then each
      int start = k < 2 ? 1 : k == 2 ? 1 + s.d : 1 + s.d + s.c, count = k == 0 ? all : k == 1 ? s.d : k == 2 ? s.c : s.b;
      int i = s.first + start < n ? s.first + start : s.first + start - n, j = i + count - 1;
      reverse_and_log(i, j < n ? j : j - n);
    }
    edge(lane == 0 ? 0 : lane == 1 ? s.d : lane == 2 ? s.d + s.c : all, from, to);
    float added = distance(from, to);
    for (int k = 0; k < 4; k++) total -= from_lane(added, k);
    return total;
  }
  // Partition crossover, as `crossover.py`: the parts of the tour that are shorter than in `best`, each for itself, into
  // `best`, which becomes the tour. Returns the gain. The room is that of the neighbor lists and of the queue's bits.
  __device__ float merge(City* best, const City* lists) {
    City *next = near, *previous = near + n, *part = near + 2 * n, *order = near + 3 * n;
    __syncwarp();
    ROLLED
    for (int p = lane; p < n; p += 32) {
      int a = best[p], b = best[p + 1 < n ? p + 1 : 0];
      next[a] = b, previous[b] = a;
    }
    __syncwarp();
    auto in_best = [&](int a, int b) { return next[a] == b || previous[a] == b; };
    auto in_tour = [&](int a, int b) { return following(a, true) == b || following(a, false) == b; };
    ROLLED
    for (int c = lane; c < n; c += 32) part[c] = in_tour(c, next[c]) && in_tour(c, previous[c]) ? NONE : c;
    bool moved = true;
    __syncwarp();
    while (votes(moved)) {  // cities joined by edges of one tour alone get the lowest of their numbers
      moved = false;
      ROLLED
      for (int c = lane; c < n; c += 32) {
        int low = part[c];
        ROLLED
        for (int k = 0; k < 4 && low != NONE; k++) {
          int to = k == 0 ? next[c] : k == 1 ? previous[c] : following(c, k == 2);
          if (!(k < 2 ? in_tour(c, to) : in_best(c, to))) low = min(low, (int)part[to]);
        }
        moved |= low < part[c];
        order[c] = low;
      }
      City* lower = order;  // nobody writes what others still read
      order = part, part = lower;
      __syncwarp();
    }
    auto is_chosen = [&](int city) {
      int own = part[city];
      return own != NONE && (queued[own / 32] >> own % 32 & 1);
    };
    auto go_around = [&] {  // along the tour's edges in chosen parts, along the best tour's elsewhere; cities met
      int city = 0, before = -1;
      ROLLED
      for (int step = 0; step < n; step++) {
        if (lane == 0) order[step] = city;
        bool other = is_chosen(city);
        int after = other ? following(city, false) : previous[city];
        if (after == before) after = other ? following(city, true) : next[city];
        before = city, city = after;
        if (city == 0) return step + 1;
      }
      return n + 1;
    };
    float total = 0.0f;
    for (int root = 0; root < n; root++) {
      if (part[root] != root) continue;
      float gain = 0.0f;
      ROLLED
      for (int c = lane; c < n; c += 32)
        if (part[c] == root) {
          int ahead = next[c], after = following(c, true);
          if (!in_tour(c, ahead)) gain += distance(c, ahead);
          if (!in_best(c, after)) gain -= distance(c, after);
        }
      gain = sum(gain);
      if (!(gain > tolerance)) continue;
      __syncwarp();
      if (lane == 0) queued[root / 32] |= 1u << root % 32;
      __syncwarp();
      bool is_tour = go_around() == n;
      __syncwarp();
      if (is_tour) total += gain;
      else if (lane == 0) queued[root / 32] &= ~(1u << root % 32);
      __syncwarp();
    }
    if (total > 0.0f) go_around();
    __syncwarp();
    ROLLED
    for (int p = lane; p < n; p += 32) {
      int city = total > 0.0f ? order[p] : best[p];
      best[p] = city, tour[p] = city, position[city] = p;
    }
    clear_queue();
    load_lists(lists);
    return total;
  }

  // Look at queued cities until none is left: at single steps first; then, unless that has undone the kick or all hope is
  // lost, deeper at those where none was found (up to 32 of them). Returns the gain together with what was before.
  __device__ float repair(float gain, int depth, bool is_deep, float hope, int looks) {
    int waiting = 0, city_waits = 0, now = is_deep ? depth : 1;
    while (looks-- > 0) {
      if (held == 0) {
        bool hopeless = fabsf(gain) <= tolerance || -gain > hope;
        if (waiting == 0 || hopeless) break;
        push(city_waits, waiting);
        waiting = 0, now = depth;
        continue;
      }
      if (is_deep) logged = 0;
      else if (logged + 3 * depth > LOG) break;
      int city = pop();
      float gained = improve(city, now);
      gain += gained;
      if (!is_deep && gained > 0.0f && fabsf(gain) <= tolerance) break;  // the tour is what it was
      if (now < depth && gained == 0.0f && waiting < 32 && !votes(lane < waiting && city_waits == city)) {
        if (lane == waiting) city_waits = city;
        waiting++;
      }
    }
    if (held) clear_queue();
    return gain;
  }

  __device__ double length_of_tour() const {
    double all = 0.0;
    ROLLED
    for (int p = lane; p < n; p += 32) {
      float d = distance(tour[p], tour[p + 1 < n ? p + 1 : 0]);
      if (d > 0.0f) all += d;  // a fixed edge counts for nothing
    }
    return sum(all);
  }

  __device__ __forceinline__ float number(int field) const { return __uint_as_float(state[field]); }
  __device__ void keep_best(City* best) {
    if (number(BEHIND) > 0.0f || state[SAVED]) return;
    save(best);
    __syncwarp();
    if (lane == 0) state[SAVED] = 1;
    __syncwarp();
  }
  __device__ __forceinline__ double best_length() const { return __hiloint2double(state[HIGH], state[LOW]); }
  __device__ __forceinline__ void keep_length(double length) {  // by lane 0
    state[LOW] = __double2loint(length), state[HIGH] = __double2hiint(length);
  }
  __device__ void begin(float slack_edges, float margin_edges) {
    double length = length_of_tour();
    float edge = (float)length / n;
    __syncwarp();
    if (lane == 0) {
      keep_length(length);
      state[SLACK] = __float_as_uint(slack_edges * edge), state[MARGIN] = __float_as_uint(margin_edges * edge);
      state[BEGUN] = 1;
    }
    __syncwarp();
  }
  // Take the better parts of the walk's tour into the best tour and go back to it.
  __device__ void end_walk(City* best, const City* lists) {
    bool is_behind = number(BEHIND) > 0.0f;
    float gain = is_behind ? merge(best, lists) : 0.0f;
    if (!is_behind) save(best);
    double length = length_of_tour();
    __syncwarp();
    if (lane == 0) {
      keep_length(length);
      if (gain > 0.0f) state[LAST] = state[KICKS] + 1;
      if (gain > 0.0f || state[LEADS]) state[AGREED] = 0;
      else if (!is_behind && state[WALKS] > 0) state[AGREED]++;
      state[WALKS]++, state[SAVED] = 1, state[IDLE] = state[LEADS] = state[BEHIND] = 0;
    }
    __syncwarp();
  }
  // Gains add up their rounding; where that might decide whether the walk has met or beaten its best tour, both are measured.
  __device__ void end_kick(float gain, int patience, int bridges) {
    float behind = number(BEHIND) - gain;
    double length = 0.0;
    if (behind <= DRIFT * tolerance) length = length_of_tour(), behind = (float)(length - best_length());
    __syncwarp();
    if (lane == 0) {
      if (behind < -tolerance) keep_length(length);
      state[BEHIND] = behind <= tolerance ? 0 : __float_as_uint(behind);
      state[KICKS]++, state[IDLE]++;
      if (behind < -tolerance) state[SAVED] = state[AGREED] = 0, state[LEADS] = 1, state[LAST] = state[KICKS];
      else if (behind <= tolerance && bridges > 0 && state[WALKS] > 0 && !state[LEADS]) state[IDLE] = patience;  // met it
    }
    __syncwarp();
  }
  // A descent where none was made yet, then this number of kicks: see `run` of `search/kernels.py`.
  __device__ void run(City* best, const City* lists, const float* units, int kicks, int depth, int patience, int bridges,
                      int enough, float slack_edges, float margin_edges) {
    random = (Random)(word)state[RANDOM_HIGH] << 32 | (word)state[RANDOM_LOW];
    int until = state[KICKS] + kicks;
    while (!state[BEGUN] || (state[KICKS] < until && !(enough > 0 && state[AGREED] >= enough))) {
      bool begun = state[BEGUN], restart = begun && state[IDLE] >= patience, is_deep = restart || !begun;
      float gain = 0.0f, allowed = 0.0f;
      logged = 0;
      if (restart) end_walk(best, lists);
      else if (begun) keep_best(best);
      if (!begun)
        ROLLED
        for (int p = 0; p < n; p += 32) push(tour[min(p + lane, n - 1)], n - p);
      for (int k = 0; k < (restart ? bridges : begun); k++) {
        Segments segments = restart || draw(LONG_KICK) == 0 ? in_a_row() : nearby();
        if (restart) logged = 0;  // never undone
        gain += kick(segments);
      }
      if (begun) allowed = number(SLACK) * units[draw(UNITS)];
      gain = repair(gain, depth, is_deep, allowed + number(MARGIN), is_deep ? 100 * n : 1000);
      bool is_kept = restart || gain >= -allowed;
      if (!begun) {
        begin(slack_edges, margin_edges);
      } else {
        if (!is_kept) undo(0);
        end_kick(is_kept ? gain : 0.0f, patience, bridges);
      }
    }
    keep_best(best);
    if (lane == 0) state[RANDOM_LOW] = (int)(word)random, state[RANDOM_HIGH] = (int)(word)(random >> 32);
    __syncwarp();
  }
};

template <bool PLAIN, int WARPS>
__device__ __forceinline__ void search_walk(const float2* places, const City* lists, const int* sizes, const int* active,
                                            City* tours, City* best, int* states, const float* units, int count, int most,
                                            int walks, int kicks,
                                            int depth, int patience, int bridges, int enough, int rule, int fixed,
                                            int is_free, int tolerance, int slack, int margin, int bytes, char* shared) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slot = blockIdx.x * WARPS + warp;
  if (slot >= count) return;
  size_t walk = active[slot], instance = walk / walks;
  int n = sizes[instance];
  Search<PLAIN> search(shared + warp * bytes, n, min(NEAR, n - 1), rule, fixed, is_free, __uint_as_float(tolerance));
  const City* own_lists = lists + instance * most * NEAR;
  float widest = 0.0f;
  ROLLED
  for (int c = lane; c < n; c += 32) {
    int city = tours[walk * most + c];
    float2 at = places[instance * most + c];
    search.place[c] = at, search.tour[c] = city, search.position[city] = c;
    widest = fmaxf(widest, fmaxf(at.x, at.y));
  }
  if (!PLAIN && rule) {  // whole numbers, unless places are so large that they are rounded themselves
    for (int mask = 16; mask; mask /= 2) widest = fmaxf(widest, shuffle(widest, mask));
    search.tolerance = fmaxf(0.5f, search.tolerance * widest);
  }
  ROLLED
  for (int k = lane; k < STATE; k += 32) search.state[k] = states[walk * STATE + k];
  search.load_lists(own_lists);
  search.clear_queue();
  search.run(best + walk * most, own_lists, units, kicks, depth, max(patience, n), bridges, enough, __uint_as_float(slack),
             __uint_as_float(margin));
  search.save(tours + walk * most);
  ROLLED
  for (int k = lane; k < STATE; k += 32) states[walk * STATE + k] = search.state[k];
}

// For `count` active walks, `walks` for each instance: places (instances, most) and lists (instances, most, 8) of `sizes` cities
// each, tours and best (all walks, most), states (all walks, STATE). `tolerance`, `slack` and `margin` have the bits of floats,
// the first as a part of what the places span, the others in mean edges; a walk lasts `patience` kicks in vain, or as many as
// there are cities. Shared memory: `bytes` a warp.
#ifdef SEARCH_WARPS
extern "C" __global__ void __launch_bounds__(SEARCH_WARPS * 32, 6)
search(const float2* places, const unsigned short* lists, const int* sizes, const int* active, unsigned short* tours,
        unsigned short* best, int* states, const float* units, int count, int most, int walks, int kicks, int depth, int patience,
        int bridges, int enough, int rule, int fixed, int is_free, int tolerance, int slack, int margin, int bytes) {
  extern __shared__ uint4 shared[];
  search_walk<true, SEARCH_WARPS>(places, lists, sizes, active, tours, best, states, units, count, most, walks, kicks, depth,
                                  patience, bridges, enough, rule, fixed, is_free, tolerance, slack, margin, bytes,
                                  (char*)shared);
}
#endif
// The same with rounded distances (rule 1 and 2), a fixed edge between the cities from `fixed` on, a last city that is free.
#ifdef SEARCH_ANY_WARPS
extern "C" __global__ void __launch_bounds__(SEARCH_ANY_WARPS * 32, 6)
search_any(const float2* places, const unsigned short* lists, const int* sizes, const int* active, unsigned short* tours,
        unsigned short* best, int* states, const float* units, int count, int most, int walks, int kicks, int depth, int patience,
        int bridges, int enough, int rule, int fixed, int is_free, int tolerance, int slack, int margin, int bytes) {
  extern __shared__ uint4 shared[];
  search_walk<false, SEARCH_ANY_WARPS>(places, lists, sizes, active, tours, best, states, units, count, most, walks, kicks, depth,
                                  patience, bridges, enough, rule, fixed, is_free, tolerance, slack, margin, bytes,
                                  (char*)shared);
}
#endif
