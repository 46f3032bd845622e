// A tour in a warp's shared memory, with what a search needs beside it. Control flow is that of the whole warp: all lanes hold
// the same counters, and what one lane writes to shared memory the others see after `__syncwarp`.
#define ROLLED _Pragma("unroll 1")  // what is copied takes room among the instructions

constexpr int NEAR = 8;  // neighbors in a list, nearest first
constexpr int LOG = 128;  // reversals that one kick and its repair may take
constexpr int SEGMENT = 50;  // cities in each segment of a kick in a row
constexpr int RANDOM_WALK = 20;  // steps along neighbor lists between the edges of a kick

// Words of a walk's state, LOW and HIGH those of the best length in fp64, in the order of `search/gpu/engine.py`.
enum { RANDOM_LOW, RANDOM_HIGH, BEGUN, IDLE, WALKS, AGREED, LEADS, SAVED, BEHIND, SLACK, MARGIN, KICKS, LAST, LOW, HIGH, STATE };

typedef unsigned short City;
typedef unsigned long long Random;

struct Segments {
  int first, b, c, d;  // the position before them, and how many cities they have
};

struct Tour {
  float2* place;
  City *near, *tour, *position, *queue;
  word *queued, *log;
  int* state;
  int n, width, lane, head, held, logged;
  Random random;

  __device__ Tour(char* memory, int cities, int lists) : n(cities), width(lists) {
    int padded = (cities + 7) / 8 * 8;
    place = (float2*)memory, near = (City*)(place + padded), tour = near + NEAR * padded;
    position = tour + padded, queue = position + padded, queued = (word*)(queue + padded);
    log = queued + (padded + 31) / 32, state = (int*)(log + LOG);
    lane = threadIdx.x % 32, head = held = logged = 0;
  }

  __device__ __forceinline__ int following(int city, bool forward) const {
    int p = position[city];
    if (forward) return tour[p + 1 < n ? p + 1 : 0];
    return tour[p > 0 ? p - 1 : n - 1];
  }
  // Of positions: the one before (-1) or after (1), whether one is beside the other, the steps between them around the cycle.
  __device__ __forceinline__ int beside(int p, int by) const {
    p += by;
    return p == n ? 0 : p < 0 ? n - 1 : p;
  }
  __device__ __forceinline__ bool are_beside(int p, int q) const {
    int steps = abs(p - q);
    return steps == 1 || steps == n - 1;
  }
  __device__ __forceinline__ int wrapped(int steps) const { return steps >= 0 ? steps : steps + n; }
  __device__ __forceinline__ int draw(int bound) {  // xorshift64*
    random ^= random >> 12, random ^= random << 25, random ^= random >> 27;
    return (int)(((random * 2685821657736338717ull >> 33) * bound) >> 31);
  }
  template <typename T>
  __device__ __forceinline__ T sum(T x) const {
    for (int mask = 16; mask; mask /= 2) x += shuffle(x, mask);
    return x;
  }

  // The queue of cities to look at; `queued` is the complement of the don't-look bits.
  // Those of the first `count` lanes that are not there yet, in their order.
  __device__ void push(int city, int count) {
    word bit = 1u << city % 32;
    bool is_new = lane < count && !(queued[city / 32] & bit);
    word same = alike(is_new ? city : ~lane), added = votes(is_new && __popc(same & ((1u << lane) - 1)) == 0);
    __syncwarp();  // all have read
    if (added >> lane & 1) {
      int slot = head + held + __popc(added & ((1u << lane) - 1));
      queue[slot < n ? slot : slot - n] = city;
      atomicOr(queued + city / 32, bit);
    }
    held += __popc(added);
    __syncwarp();
  }
  __device__ int pop() {
    int city = queue[head];
    head = head + 1 < n ? head + 1 : 0, held--;
    __syncwarp();
    if (lane == 0) queued[city / 32] &= ~(1u << city % 32);
    __syncwarp();
    return city;
  }
  __device__ void clear_queue() {
    head = held = 0;
    __syncwarp();  // all have read: a `push` may have returned without waiting
    ROLLED
    for (int k = lane; k < (n + 31) / 32; k += 32) queued[k] = 0;
    __syncwarp();
  }

  // Reverse the positions i..j (going up, around the end of the array if j < i).
  __device__ void reverse(int i, int j) {
    int count = j - i + 1;
    if (count <= 0) count += n;
    __syncwarp();  // all have read
    ROLLED
    for (int k = lane; k < count / 2; k += 32) {
      int p = i + k < n ? i + k : i + k - n, q = j - k >= 0 ? j - k : j - k + n;
      City a = tour[p], b = tour[q];
      tour[p] = b, tour[q] = a, position[b] = p, position[a] = q;
    }
    __syncwarp();
  }
  __device__ void reverse_and_log(int i, int j) {
    if (i == j) return;
    if (lane == 0) log[logged] = i | j << 16;
    logged++;
    reverse(i, j);
  }
  __device__ void undo(int mark) {
    ROLLED
    while (logged > mark) {
      word range = log[--logged];
      reverse(range & 0xffff, range >> 16);
    }
  }
  // 2-opt: edges ab, cd become ac, bd. Either b, d follow a, c in the tour, or b, d precede them.
  __device__ void exchange(int a, int b, int c, int d) {
    int i = position[b], j = position[c], before = position[a];
    if ((before + 1 < n ? before + 1 : 0) != i) i = before, j = position[d];
    int count = j - i + 1;
    if (count <= 0) count += n;
    if (2 * count > n) {  // the other side of the cycle is shorter, and the same tour
      int k = i;
      i = j + 1 < n ? j + 1 : 0, j = k > 0 ? k - 1 : n - 1;
    }
    reverse_and_log(i, j);
  }

  // Three segments that follow one another.
  __device__ Segments in_a_row() {
    int longest = max(1, min(SEGMENT, (n - 1) / 3));
    int first = draw(n), b = 1 + draw(longest), c = 1 + draw(longest), d = 1 + draw(longest);
    return {first, b, c, d};
  }
  // Those between four edges that lie near one another: at a city drawn at random, and where walks along neighbor lists end.
  __device__ Segments nearby() {
    int origin = draw(n), p[4] = {position[origin]};
    draw(2);
    Random steps = random * (2 * lane + 1);  // each lane walks
    steps ^= steps >> 29;
    int city = origin;
    ROLLED
    for (int k = 0; k < RANDOM_WALK; k++, steps >>= 3) {
      int slot = steps & 7;
      city = near[NEAR * city + (slot < width ? slot : slot % width)];
    }
    int end = position[city];
    for (int k = 1; k < 4; k++) {
      p[k] = from_lane((word)end, k);
      while (p[k] == p[0] || (k > 1 && p[k] == p[1]) || (k > 2 && p[k] == p[2])) p[k] = p[k] + 1 < n ? p[k] + 1 : 0;
    }
    auto sort = [&](int i, int j) {
      int low = min(p[i], p[j]);
      p[j] = max(p[i], p[j]), p[i] = low;
    };
    sort(0, 1), sort(2, 3), sort(0, 2), sort(1, 3), sort(1, 2);
    int b = p[1] - p[0], c = p[2] - p[1], d = p[3] - p[2], outside = p[0] + n - p[3];
    int widest = max(max(b, c), max(d, outside));  // is left out
    if (outside == widest) return {p[0], b, c, d};
    if (b == widest) return {p[1], c, d, outside};
    if (c == widest) return {p[2], d, outside, b};
    return {p[3], outside, b, c};
  }

  __device__ void save(City* best) const {
    ROLLED
    for (int p = lane; p < n; p += 32) best[p] = tour[p];
  }
  __device__ void load_lists(const City* lists) {
    ROLLED
    for (int k = lane; k < NEAR * n; k += 32) near[k] = lists[k];
    __syncwarp();
  }
};
