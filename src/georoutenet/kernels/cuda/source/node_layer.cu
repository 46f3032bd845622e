// All that a layer does at the nodes, row by row: forward and backward. See node_weights.py for the order of the
// matrices, of the vectors and of what is kept. One long file: both directions share the order of everything, and one tile.

constexpr int PAST = 6;  // states of a node, at most
constexpr int GAMMA1 = 0, BETA1 = 128, GAMMA2 = 256, BETA2 = 384, OUTPUT = 512, GATE = 640, VALUE = 896, MAPS = 1152;
constexpr int VECTORS = 1792;
enum Kept { MESSAGE, NODE, QUERY, PROJECTED, NORM1, NORM2 };  // slabs of (rows, 128)
// Columns of the gradients whose products with kept states are the gradients of the weights.
constexpr int OF_GATE = 0, OF_VALUE = 256, OF_OUTPUT = 512, OF_NODE = 640, OF_QUERY = 768, OF_PROJECTED = 896;
constexpr int COLUMNS = 1024;

// Matrices pass through shared memory one after the other, the next ones on their way while one is used.
template <int THREADS, int BUFFERS>
struct Stream {
  const uint4* from;
  uint4* buffers;
  int count, copied, used;
  // With a barrier.
  __device__ Stream(const uint4* from, uint4* buffers, int count)
      : from(from), buffers(buffers), count(count), copied(0), used(0) {
#ifdef HOPPER
    if (threadIdx.x == 0)
      for (int k = 0; k < BUFFERS; k++) prepare(arrived(k));
#endif
    __syncthreads();
    for (int k = 0; k < (TOGETHER > 1 ? BUFFERS : BUFFERS - 1); k++) copy();
  }
  __device__ __forceinline__ uint4* buffer(int number) { return buffers + number % BUFFERS * FRAGMENTS; }
#ifdef HOPPER
  __device__ __forceinline__ Signal* arrived(int number) {
    __shared__ Signal signals[BUFFERS];
    return signals + number % BUFFERS;
  }
  __device__ __forceinline__ void copy() {
    if (threadIdx.x == 0 && copied < count)
      copy_block(buffer(copied), from + copied * FRAGMENTS, 16 * FRAGMENTS, arrived(copied));
    copied++;
  }
  __device__ __forceinline__ Matrix next() {
    wait_for_block(arrived(used), used / BUFFERS % 2);
    return matrix_in(buffer(used++));
  }
#else
  __device__ __forceinline__ void copy() {
    if (copied < count) {
      uint4* to = buffer(copied) + threadIdx.x;
      const uint4* mine = from + copied * FRAGMENTS + threadIdx.x;
#pragma unroll
      for (int k = 0; k < FRAGMENTS; k += THREADS) copy16(to + k, mine + k);
    }
    commit_copies();
    copied++;
  }
  __device__ __forceinline__ Matrix next() {
    wait_for_copies<BUFFERS - 2>();
    __syncthreads();  // every thread's copies are there, and nobody reads the matrix before any more
    copy();
    return matrix_in(buffer(used++));
  }
#endif
  // acc += x times the next matrix, on its way until `end`. `meanwhile` does not touch acc, nor change x.
  template <class Work>
  __device__ __forceinline__ void begin(float (&acc)[16][4], const word (&x)[2][16], Work meanwhile) {
    Matrix b = next();
    if (TOGETHER == 1) meanwhile();
    start(acc, x, b);
    if (TOGETHER > 1) meanwhile();
  }
  // Of the last product but PENDING, if it began.
  template <int PENDING = 0>
  __device__ __forceinline__ void end(float (&acc)[16][4], const word (&x)[2][16], bool began = true) {
#ifdef HOPPER
    wait_for_products<PENDING>();
    if (began) {
      __syncthreads();  // nobody reads the matrix any more
      copy();
    }
    hold(acc), hold(x);
#endif
  }
  template <class Work>
  __device__ __forceinline__ void multiply(float (&acc)[16][4], const word (&x)[2][16], Work meanwhile) {
    begin(acc, x, meanwhile);
    end(acc, x);
  }
  __device__ __forceinline__ void multiply(float (&acc)[16][4], const word (&x)[2][16]) {
    multiply(acc, x, [] {});
  }
};
__device__ __forceinline__ int feature_of(int q, int t) { return 32 * (q / 4) + 8 * t + 2 * (q % 4); }
__device__ __forceinline__ void to_bf16(word (&x)[2][16], const float (&acc)[16][4]) {
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int q = 0; q < 16; q++) x[r][q] = pack(acc[q][2 * r], acc[q][2 * r + 1]);
}
__device__ __forceinline__ void widen(float (&acc)[16][4], const word (&x)[2][16]) {
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int q = 0; q < 16; q++) acc[q][2 * r] = low(x[r][q]), acc[q][2 * r + 1] = high(x[r][q]);
}
__device__ __forceinline__ void add(float (&acc)[16][4], const word (&x)[16], int r, float factor) {
#pragma unroll
  for (int q = 0; q < 16; q++) {
    acc[q][2 * r] = fmaf(factor, low(x[q]), acc[q][2 * r]);
    acc[q][2 * r + 1] = fmaf(factor, high(x[q]), acc[q][2 * r + 1]);
  }
}
// Row g + 8 r of x times that of h. Of the products of all rows with all of h, the diagonal counts.
__device__ __forceinline__ float dot(const word (&x)[2][16], const word (&h)[16], int r, Lane at) {
  float all[4][4] = {}, sum[2];  // four at a time, so that none waits for the one before
#pragma unroll
  for (int k = 0; k < 8; k++)
    mma(all[k % 4], x[0][2 * k], x[1][2 * k], x[0][2 * k + 1], x[1][2 * k + 1], h[2 * k], h[2 * k + 1]);
#pragma unroll
  for (int k = 0; k < 2; k++) sum[k] = all[0][2 * r + k] + all[1][2 * r + k] + (all[2][2 * r + k] + all[3][2 * r + k]);
  return from_lane(at.g % 2 ? sum[1] : sum[0], 4 * at.g + at.g / 2);
}
// A number for each past state of row g + 8 r: lane 4 g + t has those of states t and t + 4.
struct OfStates {
  float of[2][2];
  __device__ __forceinline__ void set(int r, int l, float x, Lane at) {
#pragma unroll
    for (int k = 0; k < 2; k++)
      if (l == at.t + 4 * k) of[r][k] = x;
  }
  __device__ __forceinline__ float get(int r, int l, Lane at) const {
    word both[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      both[k] = __float_as_uint(from_lane(of[r][k], 4 * at.g + l % 4));
      keep(both[k]);  // not one or the other in a branch
    }
    return __uint_as_float(l < 4 ? both[0] : both[1]);
  }
};
// Addresses in shared memory, so that a loop over them needs its code only once.
template <int COUNT>
struct Places {
  const uint4* first;
  long long* offsets;
  __device__ __forceinline__ Places(const uint4* const (&all)[COUNT], long long* shared)
      : first(all[0]), offsets(shared) {
    if (threadIdx.x == 0)
#pragma unroll
      for (int k = 0; k < COUNT; k++) offsets[k] = (const char*)all[k] - (const char*)first;
  }
  // Behind a barrier, that of `Stream`.
  __device__ __forceinline__ const uint4* operator[](int k) const {
    return (const uint4*)((const char*)first + offsets[k]);
  }
};
struct History {
  Places<PAST> states;
  int past;
  // Calls use(l, r, row) for both of the lane's rows of each state; AHEAD states are on their way while one is used.
  template <int AHEAD, class Use>
  __device__ __forceinline__ void visit(const int (&row)[2], int t, Use use) const {
    word h[AHEAD][2][16];
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
#pragma unroll
      for (int r = 0; r < 2; r++)
        if (k < past) take(h[k][r], states[k] + piece(row[r], t), 4);
#pragma unroll 1
    for (int l = 0; l < past; l += AHEAD)
#pragma unroll
      for (int k = 0; k < AHEAD; k++)
        if (l + k < past)
#pragma unroll
          for (int r = 0; r < 2; r++) {
            use(l + k, r, h[k][r]);
            if (l + k + AHEAD < past) take(h[k][r], states[l + k + AHEAD] + piece(row[r], t), 4);
          }
  }
};
// Lanes 2 k and 2 k + 1 each have a line of 128 bytes of row k of a warp's 16.
__device__ __forceinline__ size_t line_of(int first, int rows, Lane at) {
  return (size_t)min(first + at.lane / 2, rows - 1) * 16 + at.lane % 2 * 8;
}
// acc = normalized acc; and the scales of both rows.
__device__ __forceinline__ void normalize(float (&acc)[16][4], float (&scale)[2]) {
  float sum[2] = {}, square[2] = {};
#pragma unroll
  for (int q = 0; q < 16; q++)
#pragma unroll
    for (int k = 0; k < 4; k++) sum[k / 2] += acc[q][k], square[k / 2] = fmaf(acc[q][k], acc[q][k], square[k / 2]);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float mean = over_row(sum[r]) * (1.0f / WIDTH), variance = over_row(square[r]) * (1.0f / WIDTH) - mean * mean;
    scale[r] = rsqrtf(fmaxf(variance, 0.0f) + 1e-5f);
    float shift = -mean * scale[r];
#pragma unroll
    for (int q = 0; q < 16; q++)
#pragma unroll
      for (int k = 2 * r; k < 2 * r + 2; k++) acc[q][k] = fmaf(acc[q][k], scale[r], shift);
  }
}
// acc = x + for each head's two n-tiles, the averages of 128 features (16 uint4 a head) times the head's part of the
// next matrix. The first heads' are given, the others come while those are used.
constexpr int AHEAD = 4;
template <class Matrices>
__device__ __forceinline__ void add_edges(float (&acc)[16][4], const word (&x)[2][16], word (&e)[AHEAD][2][16],
                                          Matrices& stream, const uint4* row0, const uint4* row1) {
  widen(acc, x);
  Matrix b = stream.next();
#ifdef HOPPER
  hold(acc);
#endif
#pragma unroll
  for (int h = 0; h < 8; h++) {
    word(&now)[2][16] = e[h % AHEAD];
#ifdef HOPPER
    before_products();
#pragma unroll
    for (int k = 0; k < 8; k++)
      start_mma(acc[2 * h], acc[2 * h + 1], now[0][2 * k], now[1][2 * k], now[0][2 * k + 1], now[1][2 * k + 1],
                b + k * (32 * 128 / 16) + h * (2 * 128 / 16));
    commit_products();
    if (h == 0) continue;
    wait_for_products<1>();
    int done = h - 1;
    hold(e[done % AHEAD]);
#else
#pragma unroll
    for (int c = 0; c < 4; c++) {
      uint4 b0 = b[(8 * h + c) * 32], b1 = b[(8 * h + 4 + c) * 32];
      mma(acc[2 * h], now[0][4 * c], now[1][4 * c], now[0][4 * c + 1], now[1][4 * c + 1], b0.x, b0.y);
      mma(acc[2 * h + 1], now[0][4 * c], now[1][4 * c], now[0][4 * c + 1], now[1][4 * c + 1], b1.x, b1.y);
      mma(acc[2 * h], now[0][4 * c + 2], now[1][4 * c + 2], now[0][4 * c + 3], now[1][4 * c + 3], b0.z, b0.w);
      mma(acc[2 * h + 1], now[0][4 * c + 2], now[1][4 * c + 2], now[0][4 * c + 3], now[1][4 * c + 3], b1.z, b1.w);
    }
    int done = h;
#endif
    if (done + AHEAD >= 8) continue;
    take(e[done % AHEAD][0], row0 + 16 * (done + AHEAD), 4);
    take(e[done % AHEAD][1], row1 + 16 * (done + AHEAD), 4);
  }
  stream.end(acc, e[7 % AHEAD]);
}
__device__ __forceinline__ float silu(float x) {  // x / (1 + exp(-x))
  float half = 0.5f * x;
  return fmaf(half, tangent(half), half);
}

#ifdef NODE_FORWARD_WARPS
extern "C" __global__ void __launch_bounds__(NODE_FORWARD_WARPS * 32, 1)
node_forward(const uint2* values, const uint4* edges, const uint4* h0,
             const uint4* h1, const uint4* h2, const uint4* h3,
             const uint4* h4, const uint4* h5, const uint4* weights,
             const float* vectors, uint4* kept, uint4* gates, float* shares, float* scales, uint4* state,
             uint4* maps, int past, int outputs, int rows) {
  alignas(128) extern __shared__ uint4 shared[];
  constexpr int BUFFERS = 3;
  float* vector = (float*)(shared + BUFFERS * FRAGMENTS);
  Lane at;
  keep(at.t);  // what it adds to an address then stays apart from constants
  int first = (blockIdx.x * NODE_FORWARD_WARPS + threadIdx.x / 32) * 16 + at.g;
  bool inside[2] = {first < rows, first + 8 < rows};
  int row[2] = {min(first, rows - 1), min(first + 8, rows - 1)};
  auto slab = [&](int number) { return kept + (size_t)number * rows * 16; };
  auto write = [&](uint4* to, const word(&x)[2][16]) {
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (inside[r]) put(to + piece(row[r], at.t), x[r]);
  };
  // What is needed first: values, and the first heads' edges. Word 2 h + u of a row of values is features
  // 16 h + 4 t + 2 u + (0, 1): four of head h.
  float acc[16][4];
  word x[2][16], e[AHEAD][2][16];
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int h = 0; h < 8; h++) {
      uint2 v = values[(size_t)row[r] * 32 + 4 * h + at.t];
      x[r][2 * h] = v.x, x[r][2 * h + 1] = v.y;
    }
#pragma unroll
  for (int h = 0; h < AHEAD; h++)
#pragma unroll
    for (int r = 0; r < 2; r++) take(e[h][r], edges + piece(row[r] * 8 + h, at.t), 4);

#pragma unroll
  for (int k = 0; k < VECTORS / 4; k += NODE_FORWARD_WARPS * 32)
    if (k + threadIdx.x < VECTORS / 4)
      copy16((uint4*)vector + k + threadIdx.x, (const uint4*)vectors + k + threadIdx.x);
  commit_copies();
  __shared__ long long offsets[PAST];
  History history{{{h0, h1, h2, h3, h4, h5}, offsets}, past};
  Stream<NODE_FORWARD_WARPS * 32, BUFFERS> stream(weights, shared, 10 + outputs);
  size_t line = line_of(first - at.g, rows, at);
#pragma unroll 1
  for (int l = 0; l < past; l++) prefetch(history.states[l] + line);
#pragma unroll
  for (int h = AHEAD; h < 8; h++) prefetch(edges + 8 * line - 56 * (at.lane % 2) + 16 * h);
  // Eq. node_message.
  add_edges(acc, x, e, stream, edges + piece(row[0] * 8, at.t), edges + piece(row[1] * 8, at.t));
  to_bf16(x, acc);
#pragma unroll
  for (int r = 0; r < 2; r++)
    if (inside[r])
#pragma unroll
      for (int h = 0; h < 8; h++)
        ((uint2*)slab(MESSAGE))[(size_t)row[r] * 32 + 4 * h + at.t] = make_uint2(x[r][2 * h], x[r][2 * h + 1]);

  wait_for_copies();  // of the vectors; all threads' are there after the next product

  // The node, its query, and the query times the keys' matrix.
  word node[2][16];
#pragma unroll 1
  for (int number = NODE; number <= PROJECTED; number++) {
    clear(acc);
    stream.multiply(acc, x);
    to_bf16(x, acc);
    write(slab(number), x);
    if (number == NODE)
#pragma unroll
      for (int q = 0; q < 16; q++) node[0][q] = x[0][q], node[1][q] = x[1][q];
  }

  // Eqs. residual_attention and residual_mix.
  OfStates share = {{{-1e30f, -1e30f}, {-1e30f, -1e30f}}};
  history.visit<3>(row, at.t, [&](int l, int r, const word(&h)[16]) {
    share.set(r, l, dot(x, h, r, at) * 0.08838834764831845f, at);  // 1 / sqrt(128)
  });
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float(&of)[2] = share.of[r];
    float largest = fmaxf(of[0], of[1]);
    largest = fmaxf(largest, shuffle(largest, 1));
    largest = fmaxf(largest, shuffle(largest, 2));
    of[0] = __expf(of[0] - largest), of[1] = __expf(of[1] - largest);
    float part = reciprocal(over_row(of[0] + of[1]));
    of[0] *= part, of[1] *= part;
    if (inside[r]) shares[row[r] * 8 + at.t] = of[0], shares[row[r] * 8 + 4 + at.t] = of[1];
  }
  widen(acc, node);
  history.visit<1>(row, at.t, [&](int l, int r, const word(&h)[16]) { add(acc, h, r, share.get(r, l, at)); });

#pragma unroll 1
  for (int norm = 0; norm < 2; norm++) {
    if (norm == 1) {
      // Eq. swiglu, half by half; a matrix holds a quarter of the gate's and of the value's.
#pragma unroll
      for (int q = 0; q < 16; q++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[q][k] += vector[OUTPUT + feature_of(q, at.t) + k % 2];
      float both[16][4];
      auto biases = [&](int quarter) {
#pragma unroll
        for (int q = 0; q < 16; q++)
#pragma unroll
          for (int k = 0; k < 4; k++)
            both[q][k] = vector[(q < 8 ? GATE : VALUE) + 64 * quarter + feature_of(q % 8, at.t) + k % 2];
      };
      biases(0);
      stream.multiply(both, x);
      word product[2][16] = {};
#pragma unroll 1
      for (int quarter = 0; quarter < 4; quarter++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
          for (int q = 0; q < 8; q++) {
            product[r][q] = product[r][8 + q];  // of the quarter before
            product[r][8 + q] = pack(silu(both[q][2 * r]) * both[8 + q][2 * r],
                                     silu(both[q][2 * r + 1]) * both[8 + q][2 * r + 1]);
          }
#pragma unroll
          for (int c = 0; c < 2; c++) {
            if (!inside[r]) continue;
            word w[2][4];
#pragma unroll
            for (int p = 0; p < 4; p++)
#pragma unroll
              for (int k = 0; k < 2; k++)
                w[k][p] = pack(both[8 * k + 4 * c + p][2 * r], both[8 * k + 4 * c + p][2 * r + 1]);
            uint4* to = gates + (size_t)row[r] * 64 + 8 * quarter + 4 * c + at.t;
            to[0] = make_uint4(w[0][0], w[0][1], w[0][2], w[0][3]);
            to[32] = make_uint4(w[1][0], w[1][1], w[1][2], w[1][3]);
          }
        }
        bool is_odd = quarter % 2;  // half of the values are there
        if (is_odd) stream.begin(acc, product, [] {});
        if (quarter < 3) {
          biases(quarter + 1);
          stream.begin(both, x, [] {});
          stream.end<1>(acc, product, is_odd);
          stream.end(both, x);
        } else {
          stream.end(acc, product);
        }
      }
    }
    float scale[2];
    normalize(acc, scale);
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (inside[r] && at.t == 0) scales[2 * row[r] + norm] = scale[r];
    to_bf16(x, acc);
    write(slab(NORM1 + norm), x);
#pragma unroll
    for (int q = 0; q < 16; q++) {
      const float* gamma = vector + GAMMA1 + norm * (GAMMA2 - GAMMA1) + feature_of(q, at.t);
#pragma unroll
      for (int k = 0; k < 4; k++) acc[q][k] = fmaf(acc[q][k], gamma[k % 2], gamma[BETA1 - GAMMA1 + k % 2]);
    }
    to_bf16(x, acc);
    if (norm) write(state, x);
  }

  // What edges and the following layer read of the nodes.
#pragma unroll 1
  for (int o = 0; o < outputs; o++) {
#pragma unroll
    for (int q = 0; q < 16; q++)
#pragma unroll
      for (int k = 0; k < 4; k++) acc[q][k] = vector[MAPS + 128 * o + feature_of(q, at.t) + k % 2];
    stream.multiply(acc, x);
    to_bf16(node, acc);
    write(maps + (size_t)o * rows * 16, node);
  }
}
#endif

// From the gradient of y * gamma + beta, y normalized, to that of what was normalized. Writes the warp's sums, which are
// the gradients of gamma and beta: `inside` rows alone count.
__device__ __forceinline__ void norm_backward(float (&acc)[16][4], const word (&y)[2][16], const float* gamma,
                                              const float (&scale)[2], const bool (&inside)[2], Lane at,
                                              float* sums) {
  constexpr word ONES = 0x3f803f80u;
  word x[2][16];
  to_bf16(x, acc);
#pragma unroll
  for (int r = 0; r < 2; r++)
    if (!inside[r])
#pragma unroll
      for (int q = 0; q < 16; q++) x[r][q] = 0;
  // A product of n-tiles 2 k and 2 k + 1, transposed, with ones in column k: their features' sums over rows.
  float of_gamma[4] = {}, of_beta[4] = {};
#pragma unroll
  for (int k = 0; k < 8; k++) {
    word along[2], plain[2], ones = at.g == k ? ONES : 0;
#pragma unroll
    for (int q = 2 * k; q < 2 * k + 2; q++) {
      along[q % 2] = transpose(fma2(x[1][q], y[1][q], mul2(x[0][q], y[0][q])));
      plain[q % 2] = transpose(add2(x[0][q], x[1][q]));
    }
    mma(of_gamma, along[0], along[1], ones);
    mma(of_beta, plain[0], plain[1], ones);
  }
#pragma unroll
  for (int k = 0; k < 4; k++) {  // number k: column g of n-tile 4 t + 2 (k % 2) + k / 2
    float* to = sums + feature(4 * at.t + 2 * (k % 2) + k / 2, at.g);
    to[0] = of_gamma[k], to[WIDTH] = of_beta[k];
  }
#pragma unroll
  for (int q = 0; q < 16; q++)
#pragma unroll
    for (int k = 0; k < 4; k++) acc[q][k] *= gamma[feature_of(q, at.t) + k % 2];
  to_bf16(x, acc);
  float total[4][4] = {};
#pragma unroll
  for (int k = 0; k < 8; k++) mma(total[k % 4], x[0][2 * k], x[1][2 * k], x[0][2 * k + 1], x[1][2 * k + 1], ONES, ONES);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float sum = total[0][2 * r] + total[1][2 * r] + (total[2][2 * r] + total[3][2 * r]);
    float part = scale[r] * (-1.0f / WIDTH), less = sum * part, slope = dot(x, y[r], r, at) * part;
#pragma unroll
    for (int q = 0; q < 16; q++) {
      acc[q][2 * r] = fmaf(low(y[r][q]), slope, fmaf(acc[q][2 * r], scale[r], less));
      acc[q][2 * r + 1] = fmaf(high(y[r][q]), slope, fmaf(acc[q][2 * r + 1], scale[r], less));
    }
  }
}

#ifdef NODE_BACKWARD_WARPS
extern "C" __global__ void __launch_bounds__(NODE_BACKWARD_WARPS * 32, 1)
node_backward(const uint4* h0, const uint4* h1, const uint4* h2,
              const uint4* h3, const uint4* h4, const uint4* h5,
              const uint4* weights, const float* vectors, const uint4* kept,
              const uint4* gates, const float* shares, const float* scales,
              const uint4* of_state, const uint4* of_map0, const uint4* of_map1,
              const uint4* of_map2, const uint4* of_map3, const uint4* of_map4,
              uint4* of_history, uint4* gradients, uint4* products, uint2* of_values, uint4* of_edges, float* of_norms,
              int past, int outputs, int is_last, int rows) {
  alignas(128) extern __shared__ uint4 shared[];
  constexpr int BUFFERS = 2;
  float* vector = (float*)(shared + BUFFERS * FRAGMENTS);
  Lane at;
  keep(at.t);  // what it adds to an address then stays apart from constants
  int first = (blockIdx.x * NODE_BACKWARD_WARPS + threadIdx.x / 32) * 16 + at.g;
  bool inside[2] = {first < rows, first + 8 < rows};
  int row[2] = {min(first, rows - 1), min(first + 8, rows - 1)};
  auto slab = [&](int number) { return kept + (size_t)number * rows * 16; };
  auto of_past = [&](int l) { return of_history + (size_t)l * rows * 16; };
  auto write = [&](int column, const word(&x)[2][16]) {  // of the gradients for the weights' products
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (inside[r]) put(gradients + (size_t)row[r] * (COLUMNS / 8) + column / 8 + at.t, x[r]);
  };
  // What is needed first: the gradient of the new state, from the start attention and from later layers, and of its
  // first map.
  word x[2][16], more[2][16] = {}, y[2][16];
#pragma unroll
  for (int r = 0; r < 2; r++) take(x[r], of_state + piece(row[r], at.t), 4);
  if (!is_last)
#pragma unroll
    for (int r = 0; r < 2; r++) take(more[r], of_past(past) + piece(row[r], at.t), 4);
  auto take_map = [&](const uint4* of_map) {
#pragma unroll
    for (int r = 0; r < 2; r++) take(y[r], of_map + piece(row[r], at.t), 4);
  };
  take_map(of_map0);

  __shared__ long long offsets[PAST + 5];
  History history{{{h0, h1, h2, h3, h4, h5}, offsets}, past};
  Places<5> of_maps({of_map0, of_map1, of_map2, of_map3, of_map4}, offsets + PAST);
  Stream<NODE_BACKWARD_WARPS * 32, BUFFERS> stream(weights, shared, outputs + 10);
  float acc[16][4];
  float* sums = vector + 4 * WIDTH;  // for each warp: gamma1, beta1, gamma2, beta2
  float* mine = sums + threadIdx.x / 32 * 512;

  // Shared memory for what a thread needs soon: two sets of its pieces, k = 4 r + c.
  uint4* own = (uint4*)(sums + NODE_BACKWARD_WARPS * 512) + threadIdx.x / 32 * 512 + at.lane;
  uint4* ahead[2] = {own, own + 8 * 32};
  auto fetch_row = [&](int set, int r, const uint4* from, int stride, bool is_there) {  // of (rows, stride) pieces
#pragma unroll
    for (int c = 0; c < 4; c++)
      copy16(ahead[set] + 32 * (4 * r + c), from + (size_t)row[r] * stride + 4 * c + at.t, is_there);
  };
  auto fetch = [&](int set, const uint4* from, int stride) {
    fetch_row(set, 0, from, stride, true);
    fetch_row(set, 1, from, stride, true);
  };
  fetch(1, slab(NORM2), 16);
  commit_copies();
  size_t line = line_of(first - at.g, rows, at);
#pragma unroll 1
  for (int o = 1; o < outputs; o++) prefetch(of_maps[o] + line);
#pragma unroll
  for (int k = 0; k < 4; k++) prefetch(gates + 4 * line - 24 * (at.lane % 2) + 16 * k);
  prefetch(slab(PROJECTED) + line);
  prefetch(slab(NORM1) + line);
#pragma unroll 1
  for (int l = 0; l < past; l++) {
    prefetch(history.states[l] + line);
    if (!is_last) prefetch(of_past(l) + line);
  }

#pragma unroll
  for (int k = 0; k < WIDTH; k += NODE_BACKWARD_WARPS * 32)
    if (k + threadIdx.x < WIDTH) ((float4*)vector)[k + threadIdx.x] = ((const float4*)vectors)[k + threadIdx.x];
#pragma unroll
  for (int q = 0; q < 16; q++) x[0][q] = add2(x[0][q], more[0][q]), x[1][q] = add2(x[1][q], more[1][q]);
  widen(acc, x);
#pragma unroll 1
  for (int norm = 1; norm >= 0; norm--) {
    keep(row[0]), keep(row[1]);  // addresses are cheaper to compute than to keep
    if (norm == 1) {
#pragma unroll 1
      for (int o = 0; o < outputs; o++) {
#pragma unroll
        for (int q = 0; q < 16; q++) x[0][q] = y[0][q], x[1][q] = y[1][q];
        stream.multiply(acc, x, [&] {
          if (o + 1 < outputs) take_map(of_maps[o + 1]);
        });
      }
    } else {
      // Eq. swiglu, half by half.
      to_bf16(x, acc);
      float inner[16][4];
      clear(inner);
      stream.multiply(inner, x, [&] { write(OF_OUTPUT, x); });
#pragma unroll 1
      for (int half = 0; half < 2; half++) {
        wait_for_copies();
        word of_gate[2][16], of_value[2][16];
#pragma unroll
        for (int c = 0; c < 4; c++)
#pragma unroll
          for (int r = 0; r < 2; r++) {
            uint4 gate4 = ahead[0][(4 * r + c) * 32], value4 = ahead[1][(4 * r + c) * 32];
            word gate[4] = {gate4.x, gate4.y, gate4.z, gate4.w}, value[4] = {value4.x, value4.y, value4.z, value4.w};
            word product[4];
#pragma unroll
            for (int p = 0; p < 4; p++) {
              int q = 4 * c + p;
              word halves = mul2(gate[p], 0x3f003f00u);  // exact
              float silu[2], slope[2];
#pragma unroll
              for (int k = 0; k < 2; k++) {
                float g = k ? high(halves) : low(halves), tangent_of = tangent(g), sigma = fmaf(0.5f, tangent_of, 0.5f);
                silu[k] = fmaf(g, tangent_of, g);
                slope[k] = fmaf(sigma, fmaf(-g, tangent_of, g), sigma);
              }
              word d = pack(inner[q][2 * r], inner[q][2 * r + 1]), gated = pack(silu[0], silu[1]);
              of_gate[r][q] = mul2(mul2(d, value[p]), pack(slope[0], slope[1]));
              of_value[r][q] = mul2(d, gated);
              product[p] = mul2(gated, value[p]);
            }
            if (inside[r])
              products[(size_t)row[r] * 32 + 16 * half + 4 * c + at.t] =
                  make_uint4(product[0], product[1], product[2], product[3]);
          }
        stream.multiply(acc, of_gate, [&] {
          fetch(0, half == 0 ? gates + 16 : slab(PROJECTED), half == 0 ? 64 : 16);
          fetch(1, half == 0 ? gates + 48 : slab(NORM1), half == 0 ? 64 : 16);
          commit_copies();
          write(OF_GATE + 128 * half, of_gate);
        });
        stream.begin(acc, of_value, [&] { write(OF_VALUE + 128 * half, of_value); });
        if (half == 0) {
          clear(inner);
#pragma unroll
          for (int r = 0; r < 2; r++)  // x again, rather than that it takes registers all the time
            take(x[r], gradients + (size_t)row[r] * (COLUMNS / 8) + OF_OUTPUT / 8 + at.t, 4);
          stream.begin(inner, x, [] {});
          stream.end<1>(acc, of_value);
          stream.end(inner, x);
        } else {
          stream.end(acc, of_value);
        }
      }
    }
    float scale[2] = {scales[2 * row[0] + norm], scales[2 * row[1] + norm]};
    wait_for_copies();
    take(y[0], ahead[1], 32);
    take(y[1], ahead[1] + 4 * 32, 32);
    if (norm == 1) {
      fetch(0, gates, 64);
      fetch(1, gates + 32, 64);
      commit_copies();
    }
    norm_backward(acc, y, vector + GAMMA1 + norm * (GAMMA2 - GAMMA1), scale, inside, at, mine + 256 * norm);
  }

  // Eqs. residual_attention and residual_mix.
  auto fetch_old = [&](int l, int r) {
    if (l < past) fetch_row(1, r, of_past(l), 16, !is_last);
    commit_copies();
  };
  fetch_old(0, 0);
  fetch_old(0, 1);
  OfStates share, score = {};
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int k = 0; k < 2; k++) share.of[r][k] = shares[row[r] * 8 + 4 * k + at.t];
  to_bf16(x, acc);
  history.visit<2>(row, at.t, [&](int l, int r, const word(&h)[16]) { score.set(r, l, dot(x, h, r, at), at); });
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float(&of)[2] = score.of[r];
    float mean = over_row(fmaf(share.of[r][0], of[0], share.of[r][1] * of[1]));
#pragma unroll
    for (int k = 0; k < 2; k++) of[k] = share.of[r][k] * (of[k] - mean) * 0.08838834764831845f;  // 1 / sqrt(128)
  }
  float inner[16][4];
  clear(inner);
  history.visit<1>(row, at.t, [&](int l, int r, const word(&h)[16]) {
    float mine = share.get(r, l, at), change = score.get(r, l, at);
    add(inner, h, r, change);
    word share2 = pack(mine, mine), change2 = pack(change, change);
    wait_for_copies<1>();
    word sum[16], old[16];
    take(sum, ahead[0] + 4 * 32 * r, 32);  // the projected query
    take(old, ahead[1] + 4 * 32 * r, 32);
#pragma unroll
    for (int q = 0; q < 16; q++) sum[q] = fma2(share2, x[r][q], fma2(change2, sum[q], old[q]));
    if (inside[r]) put(of_past(l) + piece(row[r], at.t), sum);
    fetch_old(l + 1, r);
  });

  // Back through the keys' matrix, the query's to the node, and to the message.
#pragma unroll 1
  for (int column = OF_PROJECTED; column >= OF_NODE; column -= 128) {
    to_bf16(x, inner);
#pragma unroll
    for (int q = 0; q < 16; q++)
#pragma unroll
      for (int k = 0; k < 4; k++) inner[q][k] = column == OF_QUERY ? acc[q][k] : 0.0f;
    stream.multiply(inner, x, [&] { write(column, x); });
  }
  to_bf16(x, inner);  // features by heads, as in the forward pass
#pragma unroll
  for (int h = 0; h < 8; h++)
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (inside[r]) of_values[(size_t)row[r] * 32 + 4 * h + at.t] = make_uint2(x[r][2 * h], x[r][2 * h + 1]);
  // A head's 16 features times its rows of the matrix; one head's product while the one before is written.
  Matrix b = stream.next();
  float of_head[2][16][4];
  auto start_head = [&](int h) {
#ifdef HOPPER
    before_products();
    start_mma<false>(of_head[h % 2], x[0][2 * h], x[1][2 * h], x[0][2 * h + 1], x[1][2 * h + 1], b + h * (32 * 128 / 16));
    commit_products();
#else
    clear(of_head[h % 2]);
#pragma unroll
    for (int q = 0; q < 8; q++) {
      uint4 b2 = b[(h * 8 + q) * 32];
      mma(of_head[h % 2][2 * q], x[0][2 * h], x[1][2 * h], x[0][2 * h + 1], x[1][2 * h + 1], b2.x, b2.y);
      mma(of_head[h % 2][2 * q + 1], x[0][2 * h], x[1][2 * h], x[0][2 * h + 1], x[1][2 * h + 1], b2.z, b2.w);
    }
#endif
  };
  start_head(0);
#pragma unroll
  for (int h = 0; h < 8; h++) {
    if (h < 7) start_head(h + 1);
#ifdef HOPPER
    if (h < 7)
      wait_for_products<1>();
    else
      wait_for_products();
    hold(of_head[h % 2]);
#endif
    word e[2][16];
    to_bf16(e, of_head[h % 2]);
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (inside[r]) put(of_edges + piece(row[r] * 8 + h, at.t), e[r]);
  }

  __syncthreads();
  for (int f = threadIdx.x; f < 512; f += blockDim.x) {
    float sum = 0;
    for (int warp = 0; warp < NODE_BACKWARD_WARPS; warp++) sum += sums[warp * 512 + f];
    of_norms[blockIdx.x * 512 + f] = sum;
  }
}
#endif
