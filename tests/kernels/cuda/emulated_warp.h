// A CUDA block on the CPU: every thread is a fiber; they take turns, and those that must meet wait for each other.
// It stands in for warp.cuh in front of a kernel's source.
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
using std::max;
using std::min;

struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) double2 { double x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline unsigned __umulhi(unsigned x, unsigned y) { return (uint64_t)x * y >> 32; }
inline float __expf(float x) { return expf(x); }

struct Index { unsigned x; };
inline Index threadIdx, blockIdx, blockDim, gridDim;
alignas(16) inline char emulated_shared[1 << 18];

struct Meeting {  // of a number of threads
  unsigned size, arrived = 0, number = 0;
};
struct Fiber {  // outlives a block and a launch: to begin one asks the kernel for memory and signals
  char* stack = nullptr;
  jmp_buf place;  // where it stands
  const Meeting* meeting;  // that it waits for, or none
  unsigned number;  // of that meeting: until it is another
  bool is_done;
};
struct Emulator {
  Fiber threads[1024];
  jmp_buf scheduler;
  std::vector<Meeting> warps, groups;  // of a group, four warps
  Meeting block;
  std::function<void()> kernel;
  unsigned now;
};
inline Emulator emulator;

// To the scheduler, until it is this thread's turn again. Jumps ask the kernel for nothing, as swapcontext does.
inline void give_way() {
  unsigned me = emulator.now;
  if (!_setjmp(emulator.threads[me].place)) _longjmp(emulator.scheduler, 1);
  threadIdx.x = me;
}
inline void meet(Meeting& meeting) {
  unsigned number = meeting.number;
  if (++meeting.arrived == meeting.size) {
    meeting.arrived = 0, meeting.number++;
    return;
  }
  Fiber& fiber = emulator.threads[emulator.now];
  fiber.meeting = &meeting, fiber.number = number;
  give_way();
  fiber.meeting = nullptr;
}
inline void meet_warp() { meet(emulator.warps[threadIdx.x / 32]); }
inline void __syncthreads() { meet(emulator.block); }
inline void __syncwarp() { meet_warp(); }

inline void run_thread() {
  for (;;) {
    threadIdx.x = emulator.now;
    emulator.kernel();
    emulator.threads[emulator.now].is_done = true;
    give_way();
  }
}
inline void begin(Fiber& fiber) {
  constexpr size_t STACK = 1 << 17;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack = new char[STACK];
  context.uc_stack.ss_size = STACK;
  context.uc_link = nullptr;
  makecontext(&context, run_thread, 0);
  setcontext(&context);
}
inline void forget_exchanges();
inline void forget_copies();
inline void forget_products();
inline void launch(int blocks, int threads, std::function<void()> kernel) {
  gridDim.x = blocks, blockDim.x = threads;
  for (int b = 0; b < blocks; b++) {
    blockIdx.x = b;
    emulator.kernel = kernel;
    emulator.warps.assign(threads / 32, Meeting{32});
    emulator.groups.assign(threads / 128, Meeting{128});
    emulator.block = Meeting{(unsigned)threads};
    memset(emulated_shared, 0xff, sizeof emulated_shared);
    forget_exchanges();
    forget_copies();
    forget_products();
    for (int t = 0; t < threads; t++) emulator.threads[t].is_done = false, emulator.threads[t].meeting = nullptr;
    for (int left = threads; left;) {
      left = 0;
      for (int t = 0; t < threads; t++) {
        Fiber& fiber = emulator.threads[t];
        if (fiber.is_done) continue;
        left++;
        if (fiber.meeting && fiber.meeting->number == fiber.number) continue;
        emulator.now = t, threadIdx.x = t;
        if (_setjmp(emulator.scheduler)) continue;
        if (fiber.stack) _longjmp(fiber.place, 1);
        begin(fiber);
      }
    }
  }
}

typedef unsigned int word;
inline unsigned narrow(float x) {  // to bfloat16, to the nearest, ties to even
  unsigned bits = __float_as_uint(x);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline word pack(float lo, float hi) { return narrow(lo) | narrow(hi) << 16; }
inline float half_of(word w, int h) { return __uint_as_float(h ? w & 0xffff0000u : w << 16); }
inline word add2(word a, word b) {
  return pack(half_of(a, 0) + half_of(b, 0), half_of(a, 1) + half_of(b, 1));
}
inline word fma2(word a, word b, word c) {
  return pack(fmaf(half_of(a, 0), half_of(b, 0), half_of(c, 0)), fmaf(half_of(a, 1), half_of(b, 1), half_of(c, 1)));
}
inline word mul2(word a, word b) { return fma2(a, b, 0x80008000u); }
inline float tangent(float x) { return tanhf(x); }
inline float power2(float x) { return exp2f(x); }
inline float reciprocal(float x) { return 1.0f / x; }

// What each lane of the warp gives, for all to read until the next but one such exchange: by then all have read.
inline word given[2][1024];
inline unsigned char turn[1024];
inline const word* exchange(word x) {
  unsigned me = threadIdx.x;
  word* all = given[turn[me] ^= 1];
  all[me] = x;
  meet_warp();
  return all + me / 32 * 32;
}
inline void forget_exchanges() { memset(turn, 0, sizeof turn); }
inline word shuffle(word x, int mask) { return exchange(x)[threadIdx.x % 32 ^ mask]; }
inline float shuffle(float x, int mask) { return __uint_as_float(shuffle(__float_as_uint(x), mask)); }
inline long long shuffle(long long x, int mask) {
  word low = shuffle((word)x, mask), high = shuffle((word)((uint64_t)x >> 32), mask);
  return (long long)((uint64_t)high << 32 | low);
}
inline long long __double_as_longlong(double x) {
  long long bits;
  memcpy(&bits, &x, 8);
  return bits;
}
inline double __longlong_as_double(long long bits) {
  double x;
  memcpy(&x, &bits, 8);
  return x;
}
inline int __double2loint(double x) { return (int)__double_as_longlong(x); }
inline int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
inline double __hiloint2double(int high, int low) {
  return __longlong_as_double((long long)((uint64_t)(uint32_t)high << 32 | (uint32_t)low));
}
inline double shuffle(double x, int mask) { return __longlong_as_double(shuffle(__double_as_longlong(x), mask)); }

inline word operands[1024][6];
inline void mma(float (&c)[4], word a0, word a1, word a2, word a3, word b0, word b1) {
  unsigned me = threadIdx.x, warp = me / 32 * 32, g = me % 32 / 4, t = me % 4;
  word mine[6] = {a0, a1, a2, a3, b0, b1};
  memcpy(operands[me], mine, sizeof mine);
  meet_warp();
  for (int r = 0; r < 2; r++)
    for (int h = 0; h < 2; h++) {
      float sum = c[2 * r + h];
      int row = g + 8 * r, column = 2 * t + h;
      for (int k = 0; k < 16; k++) {
        int pair = k % 8 / 2, upper = k / 8;
        float a = half_of(operands[warp + 4 * (row % 8) + pair][row / 8 + 2 * upper], k % 2);
        float b = half_of(operands[warp + 4 * column + pair][4 + upper], k % 2);
        sum += a * b;
      }
      c[2 * r + h] = sum;
    }
  meet_warp();
}
inline void set_mma(float (&c)[4], word a0, word a1, word a2, word a3, word b0, word b1) {
  for (float& number : c) number = 0;
  mma(c, a0, a1, a2, a3, b0, b1);
}
inline void mma(float (&c)[4], word a0, word a1, word b) { mma(c, a0, a1, 0, 0, b, 0); }
inline void set_mma(float (&c)[4], word a0, word a1, word b) { set_mma(c, a0, a1, 0, 0, b, 0); }
inline Meeting barriers[16];
inline void barrier(int number, int threads) {
  barriers[number].size = threads;
  meet(barriers[number]);
}
inline void arrive(int number, int threads) {
  Meeting& meeting = barriers[number];
  meeting.size = threads;
  if (++meeting.arrived == meeting.size) meeting.arrived = 0, meeting.number++;
}
// A copy arrives when its thread waits for it; until then nobody can use what was there.
struct Copy {
  void* to;
  const void* from;
  bool inside;
  unsigned group;
  int bytes = 16;
};
inline std::vector<Copy> copies[1024];
inline unsigned groups[1024];
inline void forget_copies() {
  for (std::vector<Copy>& of_thread : copies) of_thread.clear();
}
inline void copy16(void* shared, const void* global, bool inside = true) {
  unsigned me = threadIdx.x;
  memset(shared, 0xff, 16);
  copies[me].push_back({shared, global, inside, groups[me]});
}
inline void copy4(void* shared, const void* global) {
  unsigned me = threadIdx.x;
  memset(shared, 0xff, 4);
  copies[me].push_back({shared, global, true, groups[me], 4});
}
inline void prefetch(const void*) {}
inline void commit_copies() { groups[threadIdx.x]++; }
template <int PENDING = 0>
inline void wait_for_copies() {
  unsigned me = threadIdx.x;
  std::vector<Copy> left;
  for (Copy& copy : copies[me])
    if (copy.group + PENDING >= groups[me])
      left.push_back(copy);
    else if (copy.inside)
      memcpy(copy.to, copy.from, copy.bytes);
    else
      memset(copy.to, 0, copy.bytes);
  copies[me] = left;
}
inline const unsigned short* rows_of_matrices[1024];
inline void load_matrices(word (&x)[4], const void* shared) {
  unsigned me = threadIdx.x, warp = me / 32 * 32, g = me % 32 / 4, t = me % 4;
  rows_of_matrices[me] = (const unsigned short*)shared;
  meet_warp();
  for (int k = 0; k < 4; k++) {
    const unsigned short* row = rows_of_matrices[warp + 8 * k + g];
    x[k] = row[2 * t] | (word)row[2 * t + 1] << 16;
  }
  meet_warp();
}
inline void load_transposed(word (&x)[4], const void* shared) {
  unsigned me = threadIdx.x, warp = me / 32 * 32, g = me % 32 / 4, t = me % 4;
  rows_of_matrices[me] = (const unsigned short*)shared;
  meet_warp();
  for (int k = 0; k < 4; k++) {
    const unsigned short** rows = rows_of_matrices + warp + 8 * k + 2 * t;
    x[k] = rows[0][g] | (word)rows[1][g] << 16;
  }
  meet_warp();
}
inline word from_lane(word x, int lane) { return exchange(x)[lane % 32]; }
inline float from_lane(float x, int lane) { return __uint_as_float(from_lane(__float_as_uint(x), lane)); }
inline double from_lane(double x, int lane) {
  word half[2];
  memcpy(half, &x, 8);
  for (word& each : half) each = from_lane(each, lane);
  memcpy(&x, half, 8);
  return x;
}
inline word votes(bool x) {
  const word* given = exchange(x);
  word all = 0;
  for (int lane = 0; lane < 32; lane++) all |= given[lane] << lane;
  return all;
}
inline word alike(word x) {
  const word* given = exchange(x);
  word all = 0;
  for (int lane = 0; lane < 32; lane++) all |= (word)(given[lane] == x) << lane;
  return all;
}
inline word lowest(word x) {
  const word* given = exchange(x);
  for (int lane = 0; lane < 32; lane++) x = min(x, given[lane]);
  return x;
}
inline float length(float x, float y) { return sqrtf(x * x + y * y); }  // x86 contracts nothing if not asked to
inline float rough_length(float x, float y) { return length(x, y); }
inline void atomicAdd(word* at, word x) { *at += x; }  // threads take turns
inline void atomicOr(word* at, word x) { *at |= x; }
inline double length(double x, double y) { return sqrt(x * x + y * y); }
inline long long whole_number(double x) { return llrint(x); }
inline int __popc(word x) { return __builtin_popcount(x); }
inline word transpose(word x) {
  unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  word two[2];
  for (int k = 0; k < 2; k++) {
    word y = from_lane(x, 4 * (2 * t + k) + g / 2);
    two[k] = g % 2 ? y >> 16 : y & 0xffff;
  }
  return two[0] | two[1] << 16;
}
template <word SELECTOR>
inline word permute(word a, word b) {
  uint64_t bytes = a | (uint64_t)b << 32;
  word w = 0;
  for (int k = 0; k < 4; k++) {
    word digit = SELECTOR >> 4 * k & 15, byte = bytes >> 8 * (digit % 8) & 255;
    w |= (digit < 8 ? byte : byte & 128 ? 255u : 0u) << 8 * k;
  }
  return w;
}
inline void keep(int& x) {}
inline void keep(word& x) {}
inline word shift_in(word bits, float x) { return bits << 1 | __float_as_uint(x) >> 31; }

// Products of four warps. Until waited for, the result is not there; left operand and shared memory are read only then.
typedef uint64_t Operand;
inline char published[sizeof emulated_shared];  // shared memory as the products see it
#ifdef HOPPER
inline void publish() { memcpy(published, emulated_shared, sizeof published); }
#endif
inline Operand operand(const void* shared, int along_k, int along_n) {
  Operand start = (const char*)shared - emulated_shared;
  return (start & 0x3ffff) >> 4 | (Operand)(along_k >> 4) << 16 | (Operand)(along_n >> 4) << 32;
}
// A copy of a block arrives when somebody waits for it.
typedef uint64_t Signal;  // how many copies are there
struct Block {
  Signal* signal;
  void* to;
  const void* from;
  size_t bytes;
};
inline std::vector<Block> blocks_on_their_way;
inline void prepare(Signal* signal) { *signal = 0, blocks_on_their_way.clear(); }
inline void copy_block(void* shared, const void* global, int bytes, Signal* signal) {
  memset(shared, 0xff, bytes);
  blocks_on_their_way.push_back({signal, shared, global, (size_t)bytes});
}
inline void wait_for_block(Signal* signal, int odd) {
  while (*signal % 2 == odd) {
    size_t k = 0;
    while (k < blocks_on_their_way.size() && blocks_on_their_way[k].signal != signal) k++;
    if (k < blocks_on_their_way.size()) {
      Block block = blocks_on_their_way[k];
      blocks_on_their_way.erase(blocks_on_their_way.begin() + k);
      memcpy(block.to, block.from, block.bytes);
      memcpy(published + ((char*)block.to - emulated_shared), block.from, block.bytes);
      ++*signal;
    } else {
      give_way();
    }
  }
}
struct Product {
  std::vector<float*> c;  // of each n-tile four numbers
  bool add;  // to what was there
  const word* a[4];  // or none of them, and `left`
  Operand left, b;
  bool is_transposed, is_left_transposed;
  unsigned group;
};
struct Result {
  float* at;
  float four[4];
};
struct Flight {  // of a thread
  std::vector<Product> products;
  std::vector<Result> results;  // until they are there
  unsigned group = 0;
  bool is_open = false;  // registers may be used
};
inline Flight flights[1024];
inline void forget_products() {
  for (Flight& flight : flights) flight = Flight();
  memset(published, 0xff, sizeof published);
}
inline void fail(const char* what) {
  fprintf(stderr, "%s\n", what);
  abort();
}
inline void start_product(Product product) {
  Flight& flight = flights[threadIdx.x];
  if (!flight.is_open) fail("a product without before_products");
  for (float* four : product.c) {
    bool is_known = false;
    for (Result& result : flight.results) is_known |= result.at == four;
    if (!is_known) flight.results.push_back({four, {four[0], four[1], four[2], four[3]}});
    for (int k = 0; k < 4; k++) four[k] = NAN;
  }
  product.group = flight.group;
  flight.products.push_back(product);
}
template <bool ADD = true, bool TRANSPOSED = false>
inline void start_mma(float (&c)[16][4], const word& a0, const word& a1, const word& a2, const word& a3, Operand b) {
  std::vector<float*> tiles;
  for (float(&tile)[4] : c) tiles.push_back(tile);
  start_product({tiles, ADD, {&a0, &a1, &a2, &a3}, 0, b, TRANSPOSED, TRANSPOSED});
}
template <bool ADD, bool TRANSPOSED, bool LEFT = TRANSPOSED, int N>
inline void start_mma(float (&c)[N][4], Operand a, Operand b) {
  std::vector<float*> tiles;
  for (float(&tile)[4] : c) tiles.push_back(tile);
  start_product({tiles, ADD, {}, a, b, TRANSPOSED, LEFT});
}
template <bool ADD = true>
inline void start_mma(float (&c)[4], float (&d)[4], const word& a0, const word& a1, const word& a2, const word& a3,
                      Operand b) {
  start_product({{c, d}, ADD, {&a0, &a1, &a2, &a3}, 0, b, false, false});
}
inline void meet_group() {
  if (threadIdx.x / 128 >= emulator.groups.size()) fail("products need four warps");
  meet(emulator.groups[threadIdx.x / 128]);
}
inline void before_products() {
  meet_group();
  flights[threadIdx.x].is_open = true;
}
inline void commit_products() {
  Flight& flight = flights[threadIdx.x];
  flight.group++;
  flight.is_open = false;
}
// The number at (k, n) of a shared operand: cores of 8 n with 8 k each; transposed, of 8 k with 8 n.
inline float number_at(Operand b, int k, int n, bool is_transposed) {
  size_t start = (b & 0x3fff) << 4, along_k = (b >> 16 & 0x3fff) << 4, along_n = (b >> 32 & 0x3fff) << 4;
  size_t at = start + k / 8 * along_k + n / 8 * along_n;
  at += is_transposed ? k % 8 * 16 + n % 8 * 2 : n % 8 * 16 + k % 8 * 2;
  unsigned short bits, there;
  memcpy(&bits, published + at, 2);
  memcpy(&there, emulated_shared + at, 2);
  if (bits != there) fail("a product reads what was not published, or is gone");
  return half_of(bits, 0);
}
template <int PENDING = 0>
inline void wait_for_products() {
  unsigned me = threadIdx.x, warp = me / 32 * 32, g = me % 32 / 4, t = me % 4;
  Flight& flight = flights[me];
  meet_group();
  std::vector<Product> left;
  for (Product& product : flight.products) {
    if (product.group + PENDING >= flight.group) {
      left.push_back(product);
      continue;
    }
    if (product.a[0])
      for (int k = 0; k < 4; k++) operands[me][k] = *product.a[k];
    meet_warp();
    float a[2][16];
    for (int r = 0; r < 2; r++)
      for (int k = 0; k < 16; k++)
        a[r][k] = product.a[0] ? half_of(operands[warp + 4 * g + k % 8 / 2][r + 2 * (k / 8)], k % 2)
                               : number_at(product.left, k, warp % 128 / 2 + g + 8 * r, product.is_left_transposed);
    for (size_t q = 0; q < product.c.size(); q++) {
      auto result = flight.results.begin();
      while (result->at != product.c[q]) result++;
      for (int h = 0; h < 2; h++) {
        float b[16];
        for (int k = 0; k < 16; k++) b[k] = number_at(product.b, k, 8 * q + 2 * t + h, product.is_transposed);
        for (int r = 0; r < 2; r++) {
          float sum = product.add ? result->four[2 * r + h] : 0;
          for (int k = 0; k < 16; k++) sum += a[r][k] * b[k];
          result->four[2 * r + h] = sum;
        }
      }
    }
    meet_warp();
  }
  flight.products = left;
  std::vector<Result> later;
  for (Result& result : flight.results) {
    bool in_flight = false;
    for (Product& product : left)
      for (float* four : product.c) in_flight |= four == result.at;
    if (in_flight)
      later.push_back(result);
    else
      memcpy(result.at, result.four, sizeof result.four);
  }
  flight.results = later;
  meet_group();
}
inline void hold(float&) {}
inline void hold(const word&) {}
template <int COUNT>
inline void give_registers() {}
template <int COUNT>
inline void take_registers() {}
