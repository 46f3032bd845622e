// All that a layer does at the nodes, row by row: forward and backward. See node_layer_cuda.py for the order of the
// matrices, of the vectors and of what is kept.

constexpr int PAST = 6;  // at most so many states of a node
constexpr int GAMMA1 = 0, BETA1 = 128, GAMMA2 = 256, BETA2 = 384, OUTPUT = 512, GATE = 640, VALUE = 896, MAPS = 1152;
constexpr int VECTORS = 1792;
enum Kept { MESSAGE, NODE, QUERY, PROJECTED, HIDDEN, NORM1, NORM2 };  // slabs of (rows, 128)
// Columns of the gradients whose products with kept states are the gradients of the weights.
constexpr int OF_MAPS = 0, OF_GATE = 640, OF_VALUE = 896, OF_OUTPUT = 1152, OF_NODE = 1280, OF_QUERY = 1408,
              OF_PROJECTED = 1536, COLUMNS = 1664;

// Matrices pass through shared memory one after the other, the next ones on their way while one is used.
template <int THREADS, int BUFFERS>
struct Stream {
  const uint4* from;
  uint4* buffers;
  int count, number;
  __device__ Stream(const uint4* from, uint4* buffers, int count) : from(from), buffers(buffers), count(count), number(0) {
    for (int k = 0; k < BUFFERS - 1; k++) fetch();
  }
  __device__ __forceinline__ uint4* buffer(int number) { return buffers + number % BUFFERS * FRAGMENTS; }
  __device__ __forceinline__ void fetch() {
    if (number < count) {
      uint4* to = buffer(number) + threadIdx.x;
      const uint4* mine = from + number * FRAGMENTS + threadIdx.x;
#pragma unroll
      for (int k = 0; k < FRAGMENTS; k += THREADS) copy16(to + k, mine + k);
    }
    commit_copies();
    number++;
  }
  // The next matrix; somebody calls `fetch` before the one after it.
  __device__ __forceinline__ Matrix next() {
    wait_for_copies<BUFFERS - 2>();
    publish();
    __syncthreads();  // every thread's copies are there, and nobody reads the matrix before any more
    return matrix_in(buffer(number - BUFFERS + 1));
  }
  // acc += x times the next matrix; `meanwhile` does not touch acc, nor change x. What it copies is there with the
  // matrix BUFFERS - 1 later.
  template <class Work>
  __device__ __forceinline__ void multiply(float (&acc)[16][4], const word (&x)[2][16], Work meanwhile) {
    Matrix b = next();
    if (TOGETHER == 1) meanwhile(), fetch();
    start(acc, x, b);
    if (TOGETHER > 1) meanwhile(), fetch();
    finish(acc, x);
  }
  __device__ __forceinline__ void multiply(float (&acc)[16][4], const word (&x)[2][16]) {
    multiply(acc, x, [] {});
  }
};
__device__ __forceinline__ int feature_of(int q, int t) { return 32 * (q / 4) + 8 * t + 2 * (q % 4); }
__device__ __forceinline__ void narrow(word (&x)[2][16], const float (&acc)[16][4]) {
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int q = 0; q < 16; q++) x[r][q] = pack(acc[q][2 * r], acc[q][2 * r + 1]);
}
__device__ __forceinline__ float dot(const float (&acc)[16][4], const word (&x)[16], int r) {
  float sum = 0;
#pragma unroll
  for (int q = 0; q < 16; q++)
    sum = fmaf(acc[q][2 * r], low(x[q]), fmaf(acc[q][2 * r + 1], high(x[q]), sum));
  return over_row(sum);
}
__device__ __forceinline__ void add(float (&acc)[16][4], const word (&x)[16], int r, float factor) {
#pragma unroll
  for (int q = 0; q < 16; q++) {
    acc[q][2 * r] = fmaf(factor, low(x[q]), acc[q][2 * r]);
    acc[q][2 * r + 1] = fmaf(factor, high(x[q]), acc[q][2 * r + 1]);
  }
}
// Calls use(l, rows) for the first `past` states of the lane's two rows, the next one on its way.
template <class Use>
__device__ __forceinline__ void over_history(const uint4* const (&history)[PAST], int past, const int (&row)[2], int t,
                                             Use use) {
  word h[2][2][16];
  take(h[0][0], history[0] + piece(row[0], t), 4);
  take(h[0][1], history[0] + piece(row[1], t), 4);
#pragma unroll
  for (int l = 0; l < PAST; l++)
    if (l < past) {
      if (l + 1 < past) {
        take(h[(l + 1) % 2][0], history[(l + 1) % PAST] + piece(row[0], t), 4);
        take(h[(l + 1) % 2][1], history[(l + 1) % PAST] + piece(row[1], t), 4);
      }
      use(l, h[l % 2]);
    }
}
// acc = normalized acc of row r; returns the scale.
__device__ __forceinline__ float normalize(float (&acc)[16][4], int r) {
  float sum = 0, square = 0;
#pragma unroll
  for (int q = 0; q < 16; q++)
#pragma unroll
    for (int h = 0; h < 2; h++) sum += acc[q][2 * r + h], square = fmaf(acc[q][2 * r + h], acc[q][2 * r + h], square);
  float mean = over_row(sum) * (1.0f / WIDTH);
  float scale = rsqrtf(fmaxf(over_row(square) * (1.0f / WIDTH) - mean * mean, 0.0f) + 1e-5f);
#pragma unroll
  for (int q = 0; q < 16; q++)
#pragma unroll
    for (int h = 0; h < 2; h++) acc[q][2 * r + h] = (acc[q][2 * r + h] - mean) * scale;
  return scale;
}
// acc = for each head's two n-tiles, the averages of 128 features (16 uint4 a head) times the head's part of the next
// matrix.
template <class Matrices>
__device__ __forceinline__ void average_edges(float (&acc)[16][4], Matrices& stream, const uint4* row0,
                                              const uint4* row1) {
  constexpr int AHEAD = 4;  // heads on their way
  word e[AHEAD][2][16];
#pragma unroll
  for (int h = 0; h < AHEAD; h++) take(e[h][0], row0 + 16 * h, 4), take(e[h][1], row1 + 16 * h, 4);
  Matrix b = stream.next();
  stream.fetch();
#pragma unroll
  for (int h = 0; h < 8; h++) {
    word(&x)[2][16] = e[h % AHEAD];
#ifdef HOPPER
    before_products();
    start_mma<false>(acc[2 * h], acc[2 * h + 1], x[0][0], x[1][0], x[0][1], x[1][1], b + h * (2 * 128 / 16));
#pragma unroll
    for (int k = 1; k < 8; k++)
      start_mma(acc[2 * h], acc[2 * h + 1], x[0][2 * k], x[1][2 * k], x[0][2 * k + 1], x[1][2 * k + 1],
                b + k * (32 * 128 / 16) + h * (2 * 128 / 16));
    commit_products();
    if (h == 0) continue;
    wait_for_products<1>();
    int done = h - 1;
    hold(e[done % AHEAD]);
#else
#pragma unroll
    for (int k = 0; k < 4; k++) acc[2 * h][k] = acc[2 * h + 1][k] = 0;
#pragma unroll
    for (int c = 0; c < 4; c++) {
      uint4 b0 = b[(8 * h + c) * 32], b1 = b[(8 * h + 4 + c) * 32];
      mma(acc[2 * h], x[0][4 * c], x[1][4 * c], x[0][4 * c + 1], x[1][4 * c + 1], b0.x, b0.y);
      mma(acc[2 * h + 1], x[0][4 * c], x[1][4 * c], x[0][4 * c + 1], x[1][4 * c + 1], b1.x, b1.y);
      mma(acc[2 * h], x[0][4 * c + 2], x[1][4 * c + 2], x[0][4 * c + 3], x[1][4 * c + 3], b0.z, b0.w);
      mma(acc[2 * h + 1], x[0][4 * c + 2], x[1][4 * c + 2], x[0][4 * c + 3], x[1][4 * c + 3], b1.z, b1.w);
    }
    int done = h;
#endif
    if (done + AHEAD >= 8) continue;
    take(e[done % AHEAD][0], row0 + 16 * (done + AHEAD), 4);
    take(e[done % AHEAD][1], row1 + 16 * (done + AHEAD), 4);
  }
#ifdef HOPPER
  finish(acc, e[7 % AHEAD]);
#endif
}
__device__ __forceinline__ float sigmoid(float x) { return fmaf(0.5f, tangent(0.5f * x), 0.5f); }

#ifdef NODE_FORWARD_WARPS
extern "C" __global__ void __launch_bounds__(NODE_FORWARD_WARPS * 32, 1)
node_forward(const uint2* values, const uint4* edges, const uint4* h0,
             const uint4* h1, const uint4* h2, const uint4* h3,
             const uint4* h4, const uint4* h5, const uint4* weights,
             const float* vectors, uint4* kept, uint4* gates, float* shares, float* scales, uint4* state,
             uint4* maps, int past, int outputs, int rows) {
  extern __shared__ uint4 shared[];
  constexpr int BUFFERS = 3;
  float* vector = (float*)(shared + BUFFERS * FRAGMENTS);
  for (int k = threadIdx.x; k < VECTORS; k += blockDim.x) vector[k] = vectors[k];
  Stream<NODE_FORWARD_WARPS * 32, BUFFERS> stream(weights, shared, 10 + outputs);
  Lane at;
  const uint4* history[PAST] = {h0, h1, h2, h3, h4, h5};
  int first = (blockIdx.x * NODE_FORWARD_WARPS + threadIdx.x / 32) * 16 + at.g;
  bool inside[2] = {first < rows, first + 8 < rows};
  int row[2] = {min(first, rows - 1), min(first + 8, rows - 1)};
  auto slab = [&](int number, int r) { return kept + (size_t)number * rows * 16 + piece(row[r], at.t); };
  auto keep = [&](int number, const word(&x)[2][16]) {
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (inside[r]) put(slab(number, r), x[r]);
  };
  float acc[16][4];
  word x[2][16];

  // Eq. node_message. Word 2 h + u of a row is features 16 h + 4 t + 2 u + (0, 1): four of head h.
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int h = 0; h < 8; h++) {
      uint2 v = values[(size_t)row[r] * 32 + 4 * h + at.t];
      x[r][2 * h] = v.x, x[r][2 * h + 1] = v.y;
    }
  average_edges(acc, stream, edges + piece(row[0] * 8, at.t), edges + piece(row[1] * 8, at.t));
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int q = 0; q < 16; q++) x[r][q] = pack(acc[q][2 * r] + low(x[r][q]), acc[q][2 * r + 1] + high(x[r][q]));
#pragma unroll
  for (int r = 0; r < 2; r++)
    if (inside[r])
#pragma unroll
      for (int h = 0; h < 8; h++)
        ((uint2*)slab(MESSAGE, r))[4 * h - at.t] = make_uint2(x[r][2 * h], x[r][2 * h + 1]);
  clear(acc);
  stream.multiply(acc, x);
  narrow(x, acc);

  // Eqs. residual_attention and residual_mix.
  word query[2][16];
  clear(acc);
  stream.multiply(acc, x, [&] { keep(NODE, x); });
  narrow(query, acc);
  clear(acc);
  stream.multiply(acc, query, [&] { keep(QUERY, query); });
  narrow(query, acc);
  keep(PROJECTED, query);
  float share[PAST][2], largest[2] = {-1e30f, -1e30f}, total[2] = {};
  over_history(history, past, row, at.t, [&](int l, const word(&h)[2][16]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      share[l][r] = dot(acc, h[r], r) * 0.08838834764831845f;  // 1 / sqrt(128)
      largest[r] = fmaxf(largest[r], share[l][r]);
    }
  });
#pragma unroll
  for (int r = 0; r < 2; r++) {
#pragma unroll
    for (int l = 0; l < PAST; l++)
      if (l < past) share[l][r] = __expf(share[l][r] - largest[r]), total[r] += share[l][r];
#pragma unroll
    for (int l = 0; l < PAST; l++)
      if (l < past) {
        share[l][r] /= total[r];
        if (inside[r] && at.t == 0) shares[row[r] * 8 + l] = share[l][r];
      }
#pragma unroll
    for (int q = 0; q < 16; q++) acc[q][2 * r] = low(x[r][q]), acc[q][2 * r + 1] = high(x[r][q]);
  }
  over_history(history, past, row, at.t, [&](int l, const word(&h)[2][16]) {
    add(acc, h[0], 0, share[l][0]);
    add(acc, h[1], 1, share[l][1]);
  });
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float scale = normalize(acc, r);
    if (inside[r] && at.t == 0) scales[2 * row[r]] = scale;
  }
  narrow(x, acc);
  keep(NORM1, x);
#pragma unroll
  for (int q = 0; q < 16; q++) {
    int f = feature_of(q, at.t);
#pragma unroll
    for (int k = 0; k < 4; k++) acc[q][k] = fmaf(acc[q][k], vector[GAMMA1 + f + k % 2], vector[BETA1 + f + k % 2]);
  }
  narrow(x, acc);
  keep(HIDDEN, x);

  // Eq. swiglu, half by half; a matrix holds a quarter of the gate's and of the value's.
#pragma unroll
  for (int q = 0; q < 16; q++)
#pragma unroll
    for (int k = 0; k < 4; k++) acc[q][k] += vector[OUTPUT + feature_of(q, at.t) + k % 2];
#pragma unroll 1
  for (int half = 0; half < 2; half++) {
    word product[2][16];
#pragma unroll
    for (int quarter = 0; quarter < 2; quarter++) {
      float both[16][4];
#pragma unroll
      for (int q = 0; q < 16; q++)
#pragma unroll
        for (int k = 0; k < 4; k++)
          both[q][k] = vector[(q < 8 ? GATE : VALUE) + 128 * half + feature_of(8 * quarter + q % 8, at.t) + k % 2];
      stream.multiply(both, x);
#pragma unroll
      for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int q = 0; q < 8; q++) {
          float g0 = both[q][2 * r], g1 = both[q][2 * r + 1], v0 = both[8 + q][2 * r], v1 = both[8 + q][2 * r + 1];
          product[r][8 * quarter + q] = pack(g0 * sigmoid(g0) * v0, g1 * sigmoid(g1) * v1);
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
          uint4* to = gates + (size_t)row[r] * 64 + 16 * half + 4 * (2 * quarter + c) + at.t;
          to[0] = make_uint4(w[0][0], w[0][1], w[0][2], w[0][3]);
          to[32] = make_uint4(w[1][0], w[1][1], w[1][2], w[1][3]);
        }
      }
    }
    stream.multiply(acc, product);
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float scale = normalize(acc, r);
    if (inside[r] && at.t == 0) scales[2 * row[r] + 1] = scale;
  }
  narrow(x, acc);
  keep(NORM2, x);
#pragma unroll
  for (int q = 0; q < 16; q++) {
    int f = feature_of(q, at.t);
#pragma unroll
    for (int k = 0; k < 4; k++) acc[q][k] = fmaf(acc[q][k], vector[GAMMA2 + f + k % 2], vector[BETA2 + f + k % 2]);
  }
  narrow(x, acc);
#pragma unroll
  for (int r = 0; r < 2; r++)
    if (inside[r]) put(state + piece(row[r], at.t), x[r]);

  // What edges and the following layer read of the nodes.
#pragma unroll 1
  for (int o = 0; o < outputs; o++) {
#pragma unroll
    for (int q = 0; q < 16; q++)
#pragma unroll
      for (int k = 0; k < 4; k++) acc[q][k] = vector[MAPS + 128 * o + feature_of(q, at.t) + k % 2];
    stream.multiply(acc, x);
    narrow(query, acc);
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (inside[r]) put(maps + (size_t)o * rows * 16 + piece(row[r], at.t), query[r]);
  }
}
#endif

// From the gradient of y * gamma + beta, y normalized, to that of what was normalized. Writes the warp's sums, which are
// the gradients of gamma and beta: `inside` rows alone count.
__device__ __forceinline__ void norm_backward(float (&acc)[16][4], const uint4* const (&y)[2], const float* gamma,
                                              const float (&scale)[2], const bool (&inside)[2], Lane at,
                                              float* sums) {
  word x[2][16], v[32];
  take(x[0], y[0], 4);
  take(x[1], y[1], 4);
#pragma unroll
  for (int r = 0; r < 2; r++)
    if (!inside[r])
#pragma unroll
      for (int q = 0; q < 16; q++) acc[q][2 * r] = acc[q][2 * r + 1] = 0;
#pragma unroll
  for (int q = 0; q < 16; q++) {
    v[q] = pack(fmaf(acc[q][0], low(x[0][q]), acc[q][2] * low(x[1][q])),
                fmaf(acc[q][1], high(x[0][q]), acc[q][3] * high(x[1][q])));
    v[16 + q] = pack(acc[q][0] + acc[q][2], acc[q][1] + acc[q][3]);
  }
  scatter<16>(v, at.g);
  scatter<8>(v, at.g);
  scatter<4>(v, at.g);
#pragma unroll
  for (int k = 0; k < 4; k++) {  // word 4 g + k of 32
    int index = 4 * at.g + k;
    *(float2*)(sums + index / 16 * WIDTH + feature_of(index % 16, at.t)) = make_float2(low(v[k]), high(v[k]));
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float sum = 0, along = 0;
#pragma unroll
    for (int q = 0; q < 16; q++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float c = acc[q][2 * r + h] * gamma[feature_of(q, at.t) + h];
        acc[q][2 * r + h] = c;
        sum += c, along = fmaf(c, h ? high(x[r][q]) : low(x[r][q]), along);
      }
    sum = over_row(sum) * (-1.0f / WIDTH) * scale[r];
    along = over_row(along) * (-1.0f / WIDTH) * scale[r];
#pragma unroll
    for (int q = 0; q < 16; q++)
#pragma unroll
      for (int h = 0; h < 2; h++)
        acc[q][2 * r + h] = fmaf(h ? high(x[r][q]) : low(x[r][q]), along, fmaf(acc[q][2 * r + h], scale[r], sum));
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
  extern __shared__ uint4 shared[];
  constexpr int BUFFERS = 2;
  float* vector = (float*)(shared + BUFFERS * FRAGMENTS);
  for (int k = threadIdx.x; k < 4 * WIDTH; k += blockDim.x) vector[k] = vectors[k];
  Stream<NODE_BACKWARD_WARPS * 32, BUFFERS> stream(weights, shared, outputs + 10);
  Lane at;
  const uint4* history[PAST] = {h0, h1, h2, h3, h4, h5};
  const uint4* of_maps[5] = {of_map0, of_map1, of_map2, of_map3, of_map4};
  int first = (blockIdx.x * NODE_BACKWARD_WARPS + threadIdx.x / 32) * 16 + at.g;
  bool inside[2] = {first < rows, first + 8 < rows};
  int row[2] = {min(first, rows - 1), min(first + 8, rows - 1)};
  auto slab = [&](int number, int r) { return kept + (size_t)number * rows * 16 + piece(row[r], at.t); };
  auto write = [&](int column, const word(&x)[2][16]) {  // of the gradients for the weights' products
#pragma unroll
    for (int r = 0; r < 2; r++)
      if (inside[r]) put(gradients + (size_t)row[r] * (COLUMNS / 8) + column / 8 + at.t, x[r]);
  };
  float acc[16][4];
  float* sums = vector + 4 * WIDTH;  // for each warp: gamma1, beta1, gamma2, beta2
  float* mine = sums + threadIdx.x / 32 * 512;
  word x[2][16];

  // A half of gates and values, a thread's own pieces; they come with the matrix that is fetched next.
  uint4* ahead = (uint4*)(sums + NODE_BACKWARD_WARPS * 512) + threadIdx.x / 32 * 512 + at.lane;
  auto fetch_gates = [&](int half) {
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int k = 0; k < 8; k++)
        copy16(ahead + (8 * r + k) * 32, gates + (size_t)row[r] * 64 + 32 * (k % 2) + 16 * half + 4 * (k / 2) + at.t);
  };
  fetch_gates(0);

  // The gradient of the new state: from the start attention, from later layers, and through its maps.
#pragma unroll
  for (int r = 0; r < 2; r++) {
    take(x[r], of_state + piece(row[r], at.t), 4);
#pragma unroll
    for (int q = 0; q < 16; q++) acc[q][2 * r] = low(x[r][q]), acc[q][2 * r + 1] = high(x[r][q]);
    if (!is_last) {
      take(x[r], of_history + (size_t)past * rows * 16 + piece(row[r], at.t), 4);
      add(acc, x[r], r, 1.0f);
    }
  }
  {
    word of_map[2][2][16];
    auto take_map = [&](int o) {
      take(of_map[o % 2][0], of_maps[o] + piece(row[0], at.t), 4);
      take(of_map[o % 2][1], of_maps[o] + piece(row[1], at.t), 4);
    };
    take_map(0);
#pragma unroll
    for (int o = 0; o < 5; o++)
      if (o < outputs)
        stream.multiply(acc, of_map[o % 2], [&] {
          if (o + 1 < outputs) take_map((o + 1) % 5);
          write(OF_MAPS + 128 * o, of_map[o % 2]);
        });
  }
  {
    const uint4* y[2] = {slab(NORM2, 0), slab(NORM2, 1)};
    float scale[2] = {scales[2 * row[0] + 1], scales[2 * row[1] + 1]};
    norm_backward(acc, y, vector + GAMMA2, scale, inside, at, mine + 256);
  }

  // Eq. swiglu, half by half.
  narrow(x, acc);
  write(OF_OUTPUT, x);
#pragma unroll 1
  for (int half = 0; half < 2; half++) {
    float inner[16][4];
    word of_gate[2][16], of_value[2][16];
    clear(inner);
    stream.multiply(inner, x);
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int c = 0; c < 4; c++) {
        uint4 gate4 = ahead[(8 * r + 2 * c) * 32], value4 = ahead[(8 * r + 2 * c + 1) * 32];
        word gate[4] = {gate4.x, gate4.y, gate4.z, gate4.w}, value[4] = {value4.x, value4.y, value4.z, value4.w};
        word product[4];
#pragma unroll
        for (int p = 0; p < 4; p++) {
          int q = 4 * c + p;
          float out[3][2];
#pragma unroll
          for (int h = 0; h < 2; h++) {
            float g = h ? high(gate[p]) : low(gate[p]), v = h ? high(value[p]) : low(value[p]);
            float sigma = sigmoid(g), silu = g * sigma, d = inner[q][2 * r + h];
            out[0][h] = d * v * (sigma + fmaf(-silu, sigma, silu));
            out[1][h] = d * silu;
            out[2][h] = silu * v;
          }
          of_gate[r][q] = pack(out[0][0], out[0][1]);
          of_value[r][q] = pack(out[1][0], out[1][1]);
          product[p] = pack(out[2][0], out[2][1]);
        }
        if (inside[r])
          products[(size_t)row[r] * 32 + 16 * half + 4 * c + at.t] =
              make_uint4(product[0], product[1], product[2], product[3]);
      }
    stream.multiply(acc, of_gate, [&] {
      if (half == 0) fetch_gates(1);
      write(OF_GATE + 128 * half, of_gate);
    });
    stream.multiply(acc, of_value, [&] { write(OF_VALUE + 128 * half, of_value); });
  }
  {
    const uint4* y[2] = {slab(NORM1, 0), slab(NORM1, 1)};
    float scale[2] = {scales[2 * row[0]], scales[2 * row[1]]};
    norm_backward(acc, y, vector + GAMMA1, scale, inside, at, mine);
  }

  // Eqs. residual_attention and residual_mix.
  float share[PAST][2], change[PAST][2], mean[2] = {};
  over_history(history, past, row, at.t, [&](int l, const word(&h)[2][16]) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      share[l][r] = shares[row[r] * 8 + l];
      change[l][r] = dot(acc, h[r], r);
      mean[r] = fmaf(share[l][r], change[l][r], mean[r]);
    }
  });
  float inner[16][4];
  clear(inner);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    word h[2][16], old[2][16], projected[16];
    auto to = [&](int l) { return of_history + (size_t)l * rows * 16 + piece(row[r], at.t); };
    auto read = [&](int l) {
      take(h[l % 2], history[l] + piece(row[r], at.t), 4);
      if (is_last)
#pragma unroll
        for (int q = 0; q < 16; q++) old[l % 2][q] = 0;
      else
        take(old[l % 2], to(l), 4);
    };
    take(projected, slab(PROJECTED, r), 4);
    read(0);
#pragma unroll
    for (int l = 0; l < PAST; l++)
      if (l < past) {
        if (l + 1 < past) read((l + 1) % PAST);
        float score = share[l][r] * (change[l][r] - mean[r]) * 0.08838834764831845f;  // 1 / sqrt(128)
        add(inner, h[l % 2], r, score);
        word sum[16];
#pragma unroll
        for (int q = 0; q < 16; q++)
          sum[q] = pack(fmaf(share[l][r], acc[q][2 * r], fmaf(score, low(projected[q]), low(old[l % 2][q]))),
                        fmaf(share[l][r], acc[q][2 * r + 1], fmaf(score, high(projected[q]), high(old[l % 2][q]))));
        if (inside[r]) put(to(l), sum);
      }
  }
  narrow(x, inner);
  clear(inner);
  stream.multiply(inner, x, [&] { write(OF_PROJECTED, x); });
  narrow(x, inner);
  stream.multiply(acc, x, [&] { write(OF_QUERY, x); });

  // Eq. node_message.
  narrow(x, acc);
  clear(acc);
  stream.multiply(acc, x, [&] { write(OF_NODE, x); });
  narrow(x, acc);  // features by heads, as in the forward pass
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
    narrow(e, of_head[h % 2]);
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
