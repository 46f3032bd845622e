// Tiles of 16 rows with 128 features in bfloat16, one warp a tile.
//
// Lane 4 g + t holds, of rows g and g + 8, the features 32 c + 8 t + (0 ... 7), c = 0 ... 3: as words x[r][q] with
// q = 4 c + p, features 32 c + 8 t + 2 p + (0, 1). That is 16 bytes of memory at a time, and with the weights'
// fragments filled accordingly it is both mma's left operand and its result, acc[q][2 r + (0, 1)]: nothing moves.
//
// With HOPPER, four warps multiply their 64 rows by wgmma. A matrix in shared memory then is not mma's fragments, but
// cores of 8 features out and 8 in (words p of all t together), all q for one and the same 4 c + p in a row.
constexpr int WIDTH = 128;
constexpr int FRAGMENTS = 16 * 4 * 32;  // of 16 bytes: a 128 x 128 matrix in the order of mma's operand

__device__ __forceinline__ float low(word w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float high(word w) { return __uint_as_float(w & 0xffff0000u); }

struct Lane {
  int lane, g, t;
  __device__ Lane() : lane(threadIdx.x % 32), g(lane / 4), t(lane % 4) {}
};
// The feature of column `column` of n-tile q.
__device__ __forceinline__ int feature(int q, int column) { return 32 * (q / 4) + 8 * (column / 2) + 2 * (q % 4) + column % 2; }

// Fragment k of a matrix to its place.
__device__ __forceinline__ void place(uint4* matrix, int k, uint4 v) {
#ifdef HOPPER
  word* core = (word*)matrix + (k / 32 % 4 * 64 + k / 128) * 32 + k % 32;
  core[0] = v.x, core[16 * 32] = v.y, core[32 * 32] = v.z, core[48 * 32] = v.w;
#else
  matrix[k] = v;
#endif
}
// The block's threads write(k, read(k)) for all k < count, several reads on their way at a time.
template <int BATCH = 4, class Read, class Write>
__device__ __forceinline__ void transfer(int count, Read read, Write write) {
  for (int first = threadIdx.x; first < count; first += BATCH * blockDim.x) {
    decltype(read(0)) v[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; i++) v[i] = read(min(first + i * (int)blockDim.x, count - 1));
#pragma unroll
    for (int i = 0; i < BATCH; i++)
      if (first + i * (int)blockDim.x < count) write(first + i * (int)blockDim.x, v[i]);
  }
}
// Operand fragment k of W as stored (out, in).
__device__ __forceinline__ uint4 fragment(const unsigned short* weight, int k) {
  int lane = k % 32, c = k / 32 % 4, q = k / 128;
  return *(const uint4*)(weight + feature(q, lane / 4) * WIDTH + 32 * c + 8 * (lane % 4));
}
// x W^T
__device__ void fill(uint4* fragments, const unsigned short* weight) {
  transfer(FRAGMENTS, [&](int k) { return fragment(weight, k); }, [&](int k, uint4 v) { place(fragments, k, v); });
}
// x W
__device__ void fill_transposed(uint4* fragments, const unsigned short* weight) {
  transfer(
      FRAGMENTS,
      [&](int k) {
        int lane = k % 32, c = k / 32 % 4, q = k / 128;
        const unsigned short* column = weight + (32 * c + 8 * (lane % 4)) * WIDTH + feature(q, lane / 4);
        word w[4];
#pragma unroll
        for (int p = 0; p < 4; p++) w[p] = column[2 * p * WIDTH] | (word)column[(2 * p + 1) * WIDTH] << 16;
        return make_uint4(w[0], w[1], w[2], w[3]);
      },
      [&](int k, uint4 v) { place(fragments, k, v); });
}
// x W^T times a factor, which is given twice.
__device__ void fill_times(uint4* fragments, const unsigned short* weight, word factor) {
  transfer(
      FRAGMENTS, [&](int k) { return fragment(weight, k); },
      [&](int k, uint4 v) {
        place(fragments, k, make_uint4(mul2(v.x, factor), mul2(v.y, factor), mul2(v.z, factor), mul2(v.w, factor)));
      });
}
__device__ void fill_half(uint4* fragments, const unsigned short* weight) { fill_times(fragments, weight, 0x3f003f00u); }
__device__ __forceinline__ void clear(float (&acc)[16][4]) {
#pragma unroll
  for (int q = 0; q < 16; q++)
#pragma unroll
    for (int k = 0; k < 4; k++) acc[q][k] = 0;
}

#ifdef HOPPER
constexpr int TOGETHER = 4;  // warps
typedef Operand Matrix;
// A matrix for `start`, written by all threads; a barrier lies between `publish` and `start`.
// Its cores shall lie in whole lines of 128 bytes: so do kernels align their shared memory.
__device__ __forceinline__ Matrix matrix_in(const uint4* shared) { return operand(shared, 16 * 128, 128); }
__device__ __forceinline__ void hold(float (&acc)[16][4]) {
#pragma unroll
  for (int q = 0; q < 16; q++)
#pragma unroll
    for (int k = 0; k < 4; k++) hold(acc[q][k]);
}
__device__ __forceinline__ void hold(const word (&x)[2][16]) {
#pragma unroll
  for (int q = 0; q < 16; q++) hold(x[0][q]), hold(x[1][q]);
}
// acc += x b: acc is there, and x may change, after `finish`.
__device__ __forceinline__ void start(float (&acc)[16][4], const word (&x)[2][16], Matrix b) {
  hold(acc);
  before_products();
#pragma unroll
  for (int k = 0; k < 8; k++)
    start_mma(acc, x[0][2 * k], x[1][2 * k], x[0][2 * k + 1], x[1][2 * k + 1], b + k * (32 * 128 / 16));
  commit_products();
}
__device__ __forceinline__ void finish(float (&acc)[16][4], const word (&x)[2][16]) {
  wait_for_products();
  hold(acc);
  hold(x);
}
#else
constexpr int TOGETHER = 1;
typedef const uint4* Matrix;
__device__ __forceinline__ void publish() {}
__device__ __forceinline__ Matrix matrix_in(const uint4* shared) { return shared + threadIdx.x % 32; }
__device__ __forceinline__ void start(float (&acc)[16][4], const word (&x)[2][16], Matrix b) {
#pragma unroll
  for (int c = 0; c < 4; c++)
#pragma unroll
    for (int q = 0; q < 16; q += 2) {  // two at a time, so that none waits for the one before
      uint4 b0 = b[(q * 4 + c) * 32], b1 = b[(q * 4 + 4 + c) * 32];
      mma(acc[q], x[0][4 * c], x[1][4 * c], x[0][4 * c + 1], x[1][4 * c + 1], b0.x, b0.y);
      mma(acc[q + 1], x[0][4 * c], x[1][4 * c], x[0][4 * c + 1], x[1][4 * c + 1], b1.x, b1.y);
      mma(acc[q], x[0][4 * c + 2], x[1][4 * c + 2], x[0][4 * c + 3], x[1][4 * c + 3], b0.z, b0.w);
      mma(acc[q + 1], x[0][4 * c + 2], x[1][4 * c + 2], x[0][4 * c + 3], x[1][4 * c + 3], b1.z, b1.w);
    }
}
__device__ __forceinline__ void finish(float (&acc)[16][4], const word (&x)[2][16]) {}
#endif
__device__ __forceinline__ void multiply(float (&acc)[16][4], const word (&x)[2][16], Matrix b) {
  start(acc, x, b);
  finish(acc, x);
}
__device__ __forceinline__ void take(word (&x)[16], const uint4* from, int stride) {
#pragma unroll
  for (int c = 0; c < 4; c++) {
    uint4 v = from[c * stride];
    x[4 * c] = v.x, x[4 * c + 1] = v.y, x[4 * c + 2] = v.z, x[4 * c + 3] = v.w;
  }
}
__device__ __forceinline__ void put(uint4* to, const word (&x)[16]) {
#pragma unroll
  for (int c = 0; c < 4; c++) to[4 * c] = make_uint4(x[4 * c], x[4 * c + 1], x[4 * c + 2], x[4 * c + 3]);
}
// A row's 16-byte piece of this thread.
__device__ __forceinline__ size_t piece(int row, int t) { return (size_t)row * (WIDTH / 8) + t; }
__device__ __forceinline__ float over_row(float x) {
  x += shuffle(x, 1);
  return x + shuffle(x, 2);
}

// A matrix of 16 ins and 128 outs, in the tiles' order: read(out, in) is the word of ins in and in + 1.
constexpr int NARROW = 256;  // of 16 bytes
__device__ __forceinline__ void place_narrow(uint4* matrix, int k, word w) {
#ifdef HOPPER
  ((word*)matrix)[k] = w;
#else
  ((word*)matrix)[k % 512 * 2 + k / 512] = w;
#endif
}
template <class Read>
__device__ void fill_narrow(uint4* matrix, Read read) {
  transfer(
      4 * NARROW, [&](int k) { return (word)read(feature(k / 32 % 16, k % 32 / 4), k / 512 * 8 + k % 4 * 2); },
      [&](int k, word w) { place_narrow(matrix, k, w); });
}
// A vector as such a matrix: the product with a `UnitRow` is the vector, in three parts to the last bit of it.
__device__ void fill_vector(uint4* matrix, const float* vector, float factor) {
  transfer(
      4 * NARROW, [&](int k) { return factor * vector[feature(k / 32 % 16, k % 32 / 4)]; },
      [&](int k, float v) {
        float a = low(pack(v, 0.0f)), b = low(pack(v - a, 0.0f));
        place_narrow(matrix, k, k >= 512 || k % 4 > 1 ? 0 : k % 4 ? pack(v - a - b, 0.0f) : pack(a, b));
      });
}
// Its rows as a left operand: words of the first and of the last 8 ins, which products on their way want to stay.
struct UnitRow {
  word one, none;
  __device__ UnitRow(int t) : one(t == 0 ? 0x3f803f80u : t == 1 ? 0x3f80u : 0), none(0) { keep(one), keep(none); }
};

// acc = vector + a b, of 16 ins or of 128: there after `finish`.
#ifdef HOPPER
__device__ __forceinline__ Matrix narrow_in(const uint4* shared) { return operand(shared, 16 * 128, 128); }
__device__ __forceinline__ void start(float (&acc)[16][4], const UnitRow& unit, Matrix vector, const word (&a)[4], Matrix b) {
  before_products();
  start_mma<false>(acc, unit.one, unit.one, unit.none, unit.none, vector);
  start_mma(acc, a[0], a[1], a[2], a[3], b);
  commit_products();
}
__device__ __forceinline__ void start(float (&acc)[16][4], const UnitRow& unit, Matrix vector, const word (&x)[2][16],
                                      Matrix b) {
  before_products();
  start_mma<false>(acc, unit.one, unit.one, unit.none, unit.none, vector);
#pragma unroll
  for (int k = 0; k < 8; k++)
    start_mma(acc, x[0][2 * k], x[1][2 * k], x[0][2 * k + 1], x[1][2 * k + 1], b + k * (32 * 128 / 16));
  commit_products();
}
__device__ __forceinline__ void finish(float (&acc)[16][4], const UnitRow& unit, const word (&a)[4]) {
  wait_for_products();
  hold(acc);
  hold(unit.one), hold(unit.none), hold(a[0]), hold(a[1]), hold(a[2]), hold(a[3]);
}
__device__ __forceinline__ void finish(float (&acc)[16][4], const UnitRow& unit, const word (&x)[2][16]) {
  finish(acc, x);
  hold(unit.one), hold(unit.none);
}
#else
__device__ __forceinline__ Matrix narrow_in(const uint4* shared) { return (Matrix)((const uint2*)shared + threadIdx.x % 32); }
__device__ __forceinline__ void add_narrow(float (&acc)[16][4], word a0, word a1, word a2, word a3, Matrix b) {
#pragma unroll
  for (int q = 0; q < 16; q++) {
    uint2 v = ((const uint2*)b)[q * 32];
    mma(acc[q], a0, a1, a2, a3, v.x, v.y);
  }
}
__device__ __forceinline__ void start(float (&acc)[16][4], const UnitRow& unit, Matrix vector, const word (&a)[4], Matrix b) {
  clear(acc);
  add_narrow(acc, unit.one, unit.one, unit.none, unit.none, vector);
  add_narrow(acc, a[0], a[1], a[2], a[3], b);
}
__device__ __forceinline__ void start(float (&acc)[16][4], const UnitRow& unit, Matrix vector, const word (&x)[2][16],
                                      Matrix b) {
  clear(acc);
  add_narrow(acc, unit.one, unit.one, unit.none, unit.none, vector);
  start(acc, x, b);
}
template <class Left>
__device__ __forceinline__ void finish(float (&acc)[16][4], const UnitRow& unit, const Left& left) {}
#endif

// The tiles of a block, in whole numbers of warps that share a wgmma; some may be beyond the last.
struct Share {
  int first, last;
  __device__ Share(int pairs) {
    int tiles = (pairs + 16 * TOGETHER - 1) / (16 * TOGETHER), share = (tiles + gridDim.x - 1) / gridDim.x;
    first = TOGETHER * share * blockIdx.x;
    last = TOGETHER * min(tiles, share * ((int)blockIdx.x + 1));
  }
};
// Division by a number, rounded down, of what is not negative.
struct Divisor {
  word number, inverse;
  __device__ __forceinline__ int operator()(int x) const {
    int quotient = __umulhi(x, inverse);  // or one less than the quotient
    return quotient + (x - quotient * number >= number);
  }
};
// What of a word a thread keeps of a diagonal matrix, as mma's right operand of 8 x 8, from its own features' factors.
__device__ __forceinline__ word diagonal(Lane at) { return at.g / 2 != at.t ? 0 : at.g % 2 ? 0xffff0000u : 0xffffu; }
__device__ __forceinline__ void take4(word (&x)[4], uint4 v) { x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w; }
// A tile in shared memory: where a row has a piece of 16 bytes. None of these share banks: eight pieces of a row, four
// of two rows each, one of eight rows each.
__device__ __forceinline__ int place_in_tile(int row, int piece) {
  int lower = row % 8;
  return row / 8 * 128 + piece / 4 * 32 + (4 * lower + piece % 4 ^ lower / 2 ^ piece / 4 % 2 * 4);
}
// The same for the piece 4 c further, c from 0.
__device__ __forceinline__ int further(int place, int c) { return 32 * c + (c % 2 ? place ^ 4 : place); }
// For the gradient of a norm with gains gamma: right operands of mma as they lie in registers, for all tiles, by lane.
struct Factors {
  uint2 gain[32];        // gamma in bfloat16, of words 0 and 2, of words 1 and 3 of each four
  uint4 gains[8][32];    // diagonal matrices of two words: gamma and 1, gamma and 1
  uint4 rests[4][32];    // of four words: what is left of gamma
  uint4 columns[4][32];  // all rows to column k, twice; to column k + 1, twice
  __device__ void set(const float* gamma, Lane at) {
    word kept = diagonal(at), one = kept & 0x3f803f80u;
    for (int c = threadIdx.x / 32; c < 4; c += blockDim.x / 32) {
      word w[4], rest[4], column[2];
      for (int p = 0; p < 4; p++) {
        const float* two = gamma + 32 * c + 8 * at.t + 2 * p;
        w[p] = pack(two[0], two[1]), rest[p] = pack(two[0] - low(w[p]), two[1] - high(w[p])) & kept;
      }
      if (at.g == 0) gain[8 * c + 2 * at.t] = make_uint2(w[0], w[2]);
      if (at.g == 1) gain[8 * c + 2 * at.t + 1] = make_uint2(w[1], w[3]);
      for (int h = 0; h < 2; h++) {
        gains[2 * c + h][at.lane] = make_uint4(w[2 * h] & kept, one, w[2 * h + 1] & kept, one);
        column[h] = at.g == 2 * c + h ? 0x3f803f80u : 0;
      }
      rests[c][at.lane] = make_uint4(rest[0], rest[1], rest[2], rest[3]);
      columns[c][at.lane] = make_uint4(column[0], column[0], column[1], column[1]);
    }
  }
};
// total[0] + total[3] += the sum over four words of x, each times the gain of its feature.
__device__ __forceinline__ void add_row(float (&total)[4], const word (&x)[4], uint2 gain) {
  mma(total, x[0], x[1], x[2], x[3], gain.x, gain.y);
}
// Four words of features, from 4 c on, of two rows: acc becomes the gradient of what went into the norm, and slope, which
// has the norm's scale, is multiplied by it. Without the scale it is change gamma + mean + along y.
__device__ __forceinline__ void of_normed(float (&acc)[16][4], word (&slope)[2][16], const word (&y)[2][4],
                                          const word (&change)[2][4], const word (&mean)[2], const word (&along)[2],
                                          const float (&scale)[2], const Factors& factors, int c, int lane) {
  word gains[2][4], rest[4];
  take4(gains[0], factors.gains[2 * c][lane]), take4(gains[1], factors.gains[2 * c + 1][lane]);
  take4(rest, factors.rests[c][lane]);
#pragma unroll
  for (int p = 0; p < 4; p++) {
    int q = 4 * c + p;
    set_mma(acc[q], change[0][p], change[1][p], fma2(y[0][p], along[0], mean[0]), fma2(y[1][p], along[1], mean[1]),
            gains[p / 2][p % 2 * 2], gains[p / 2][p % 2 * 2 + 1]);
    mma(acc[q], change[0][p], change[1][p], rest[p]);
#pragma unroll
    for (int r = 0; r < 2; r++) slope[r][q] = mul2(pack(acc[q][2 * r], acc[q][2 * r + 1]), slope[r][q]);
#pragma unroll
    for (int k = 0; k < 4; k++) acc[q][k] *= scale[k / 2];
  }
}
// sum += a^T b over a tile's 16 rows: 32 features of the left by 64 of the right, which lie in `rows` from `place` on.
__device__ __forceinline__ void add_tile(float (&sum)[2][8][4], const word (&a)[2][4], const uint4* rows, int place) {
#pragma unroll
  for (int q = 0; q < 4; q++) {
    word b[4];
    load_transposed(b, rows + (place ^ 2 * q));
#pragma unroll
    for (int h = 0; h < 2; h++) {
      mma(sum[h][2 * q], a[h][0], a[h][1], a[h][2], a[h][3], b[0], b[1]);
      mma(sum[h][2 * q + 1], a[h][0], a[h][1], a[h][2], a[h][3], b[2], b[3]);
    }
  }
}
// Eight neighboring features' numbers.
__device__ __forceinline__ void take8(float (&x)[8], const float* from) {
  float4 v = *(const float4*)from, w = *(const float4*)(from + 4);
  x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w, x[4] = w.x, x[5] = w.y, x[6] = w.z, x[7] = w.w;
}

// A factor of every feature as diagonal matrices, by lane: words 2 k and 2 k + 1, of each the factor and what is left.
typedef uint4 Diagonals[8][32];
__device__ void set_diagonals(Diagonals& to, const float* factors, float times, Lane at) {
  for (int k = threadIdx.x / 32; k < 8; k += blockDim.x / 32) {
    word w[2], rest[2];
    for (int h = 0; h < 2; h++) {
      const float* two = factors + feature(2 * k + h, 2 * at.t);
      float a = times * two[0], b = times * two[1];
      w[h] = pack(a, b), rest[h] = pack(a - low(w[h]), b - high(w[h])) & diagonal(at);
      w[h] &= diagonal(at);
    }
    to[k][at.lane] = make_uint4(w[0], rest[0], w[1], rest[1]);
  }
}
// The edge tower's two-layer ReLU head. Its hidden layer is wanted again only for the units that are on: a bit for each.
// Lane t of a row has a word: bit 7 - s of byte b is feature 32 (s / 2) + 8 t + 4 (s % 2) + b.
// Everything is negative: the sign of minus the hidden unit says whether it is on, and zero is not. In shared memory.
struct Head {
  float4 half_last[WIDTH / 4];
  float offset;
  // By all threads, with the hidden layer's matrix and behind it the bias; `publish` and a barrier follow.
  __device__ void set(uint4* matrix, const unsigned short* weight, const float* bias, const float* last, const float* offset) {
    fill_times(matrix, weight, 0xbf80bf80u);
    fill_vector(matrix + FRAGMENTS, bias, -1.0f);
    for (int f = threadIdx.x; f < WIDTH; f += blockDim.x) ((float*)half_last)[f] = -0.5f * last[f];
    if (threadIdx.x == 0) this->offset = offset[0];
  }
  // From minus the hidden units of a tile: logits, and bits if they are to be kept.
  template <bool KEEP>
  __device__ __forceinline__ void finish(const float (&acc)[16][4], int tile, Lane at, float* out, word* on, int pairs) const {
    float sums[2] = {};
    word bits[2] = {};
#pragma unroll
    for (int s = 0; s < 8; s++) {
      float4 l = half_last[8 * (s / 2) + 2 * at.t + s % 2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float *u = &acc[2 * s][2 * r], *v = &acc[2 * s + 1][2 * r];
        // Twice the negative part.
        sums[r] = fmaf(u[0] - fabsf(u[0]), l.x, fmaf(u[1] - fabsf(u[1]), l.y, sums[r]));
        sums[r] = fmaf(v[0] - fabsf(v[0]), l.z, fmaf(v[1] - fabsf(v[1]), l.w, sums[r]));
      }
    }
#pragma unroll
    for (int b = 3; b >= 0; b--)
#pragma unroll
      for (int s = 0; s < 8; s++)
#pragma unroll
        for (int r = 0; r < 2; r++) bits[r] = shift_in(bits[r], acc[2 * s + b / 2][2 * r + b % 2]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = 16 * tile + at.g + 8 * r;
      float z = over_row(sums[r]);
      if (row < pairs) {
        if (KEEP) on[(size_t)row * 4 + at.t] = bits[r];
        if (at.t == 0) out[row] = z + offset;
      }
    }
  }
};
// The sum over lines of read(line) by lane, in all warps; warp w reads lines w, w + warps, ... Shared memory: a number for
// each thread.
template <class Read>
__device__ __forceinline__ float over_lines(float* shared, int lines, Read read) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  float sum = 0;
#pragma unroll 8
  for (int line = warp; line < lines; line += warps) sum += read(line);
  __syncthreads();
  shared[threadIdx.x] = sum;
  __syncthreads();
  sum = 0;
  for (int w = 0; w < warps; w++) sum += shared[32 * w + lane];
  return sum;
}
