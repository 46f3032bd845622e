// The start state's attention over an instance's nodes, forward and backward; 8 heads of 16 features. One long file: both
// directions share layouts and crews.
//
// A block of 8 warps takes two instances. At the linear maps a warp is a head: it reads its 16 rows of a matrix once for
// both instances. Two layouts of vectors alternate there: by features, lane l has 4 l ... 4 l + 3 of both; by rows, lane
// 16 i + k has the warp's row k of instance i. At the nodes four warps are an instance's crew and share its tiles of 16
// nodes, for all heads at a time: the products with the nodes' states are matrix products, their operands as in tiles.cuh.
// Where a block's second instance is past the last, it does the last one again.
constexpr int HEADS = 8;
constexpr int CREW = 4;
constexpr int ROW = WIDTH / 4;                   // a matrix' row, four features each
constexpr float TO_POWER = 0.25f * 1.44269504f;  // from products to powers of two
constexpr float NOTHING = -1e30f;

struct Space {                             // shared memory, padded against conflicts of banks
  uint4 rows[2][HEADS][WIDTH / 8 + 1];     // of heads in bfloat16: folded queries, or gradients of what is pooled
  float parts[2][CREW][HEADS][WIDTH + 2];  // each warp's sums over nodes
  float tops[2][CREW][HEADS], totals[2][CREW][HEADS];
  float vectors[HEADS][2][WIDTH];
};

struct Place : Lane {
  int warp, crew, member, batch;
  __device__ Place(int batch) : warp(threadIdx.x / 32), crew(warp / CREW), member(warp % CREW), batch(batch) {}
  __device__ int instance(int i) const { return min(2 * (int)blockIdx.x + i, batch - 1); }
  __device__ int row() const { return 16 * warp + lane % 16; }
  __device__ int row_instance() const { return instance(lane / 16); }
};

__device__ __forceinline__ void widen(float (&v)[4], uint2 w) {
  v[0] = low(w.x), v[1] = high(w.x), v[2] = low(w.y), v[3] = high(w.y);
}
__device__ __forceinline__ uint2 packed(const float (&v)[4]) { return make_uint2(pack(v[0], v[1]), pack(v[2], v[3])); }
__device__ __forceinline__ void read(float (&v)[4], const float* from) {
  float4 w = *(const float4*)from;
  v[0] = w.x, v[1] = w.y, v[2] = w.z, v[3] = w.w;
}
__device__ __forceinline__ void write(float* to, const float (&v)[4]) { *(float4*)to = make_float4(v[0], v[1], v[2], v[3]); }
__device__ __forceinline__ unsigned short rounded(float x) { return pack(x, 0.0f); }
__device__ __forceinline__ float over_lanes(float x) {
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) x += shuffle(x, mask);
  return x;
}
__device__ __forceinline__ float over_nodes(float x) {
#pragma unroll
  for (int mask = 4; mask < 32; mask *= 2) x += shuffle(x, mask);
  return x;
}
// To mean 0 and variance 1; returns the scale.
__device__ __forceinline__ float normalize(float (&r)[4]) {
  float mean = over_lanes(r[0] + r[1] + r[2] + r[3]) / WIDTH, variance = 0.0f;
#pragma unroll
  for (int e = 0; e < 4; e++) r[e] -= mean, variance += r[e] * r[e];
  float scale = rsqrtf(over_lanes(variance) / WIDTH + 1e-5f);
#pragma unroll
  for (int e = 0; e < 4; e++) r[e] *= scale;
  return scale;
}
template <int HALF>
__device__ __forceinline__ void halve(float (&v)[32], int lane) {
  bool upper = lane & HALF;
#pragma unroll
  for (int k = 0; k < HALF; k++) {
    float keep = upper ? v[k + HALF] : v[k], send = upper ? v[k] : v[k + HALF];
    v[k] = keep + shuffle(send, HALF);
  }
}
// The warp's rows of W v, from features to rows.
__device__ __forceinline__ float map_rows(const Place& at, const uint2* weight, const float (&v)[2][4]) {
  float sums[32], w[4];
  weight += 16 * at.warp * ROW + at.lane;
#pragma unroll
  for (int k = 0; k < 16; k++) {
    widen(w, weight[k * ROW]);
#pragma unroll
    for (int i = 0; i < 2; i++) sums[16 * i + k] = w[0] * v[i][0] + w[1] * v[i][1] + w[2] * v[i][2] + w[3] * v[i][3];
  }
  halve<16>(sums, at.lane), halve<8>(sums, at.lane), halve<4>(sums, at.lane);
  halve<2>(sums, at.lane), halve<1>(sums, at.lane);
  return sums[0];
}
// W^T y of the warp's rows, from rows to features.
__device__ __forceinline__ void map_back(const Place& at, float (&v)[2][4], const uint2* weight, float y) {
  float w[4];
  weight += 16 * at.warp * ROW + at.lane;
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) v[i][e] = 0.0f;
#pragma unroll
  for (int k = 0; k < 16; k++) {
    widen(w, weight[k * ROW]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float factor = from_lane(y, 16 * i + k);
#pragma unroll
      for (int e = 0; e < 4; e++) v[i][e] += factor * w[e];
    }
  }
}
// The warp's rows of a vector that lies by features.
__device__ __forceinline__ float rows_of(const Place& at, const float (&v)[2][4]) {
  float y;
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      float z = from_lane(v[i][e], 4 * at.warp + at.lane % 16 / 4);
      if (at.lane / 16 == i && at.lane % 4 == e) y = z;
    }
  return y;
}
__device__ __forceinline__ void read_features(const Place& at, float (&v)[2][4], const uint2* from) {
#pragma unroll
  for (int i = 0; i < 2; i++) widen(v[i], from[(size_t)at.instance(i) * ROW + at.lane]);
}

struct Nodes {  // a tile; nodes past the last are the last again
  word x[2][16];
  int node[2];
  bool inside[2];
  __device__ __forceinline__ Nodes(const Place& at, const uint4* states, int tile, int n) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int wanted = 16 * tile + at.g + 8 * r;
      inside[r] = wanted < n;
      node[r] = at.instance(at.crew) * n + min(wanted, n - 1);
      take(x[r], states + piece(node[r], at.t), 4);
    }
  }
  // Products with the heads' rows: of node g + 8 r with heads 2 t and 2 t + 1.
  __device__ __forceinline__ void products(float (&c)[4], const word (&head)[16]) const {
    c[0] = c[1] = c[2] = c[3] = 0.0f;
#pragma unroll
    for (int k = 0; k < 16; k += 2) mma(c, x[0][k], x[1][k], x[0][k + 1], x[1][k + 1], head[k], head[k + 1]);
  }
  // Adds sums weighted by such numbers: features feature(2 k, g) and feature(2 k + 1, g) of heads 2 t and 2 t + 1.
  __device__ __forceinline__ void accumulate(float (&sums)[8][4], const float (&weights)[4]) const {
    word left = transpose(pack(weights[0], weights[1])), right = transpose(pack(weights[2], weights[3]));
#pragma unroll
    for (int k = 0; k < 8; k++)
      mma(sums[k], transpose(x[0][2 * k]), transpose(x[0][2 * k + 1]), transpose(x[1][2 * k]),
          transpose(x[1][2 * k + 1]), left, right);
  }
};
__device__ __forceinline__ void clear(float (&sums)[8][4]) {
#pragma unroll
  for (int k = 0; k < 32; k++) sums[k / 4][k % 4] = 0.0f;
}
__device__ __forceinline__ void leave(const Place& at, Space& space, const float (&sums)[8][4]) {
  float(*parts)[WIDTH + 2] = space.parts[at.crew][at.member];
#pragma unroll
  for (int k = 0; k < 8; k++)
#pragma unroll
    for (int e = 0; e < 4; e++) parts[2 * at.t + e % 2][feature(2 * k + e / 2, at.g)] = sums[k][e];
}
// Adds a part of the warp's head to a vector by features.
__device__ __forceinline__ void add_part(const Place& at, float (&v)[4], const Space& space, int i, int member,
                                         float share) {
  const float2* part = (const float2*)space.parts[i][member][at.warp] + 2 * at.lane;
  v[0] += share * part[0].x, v[1] += share * part[0].y, v[2] += share * part[1].x, v[3] += share * part[1].y;
}

struct Softmax {  // of heads 2 t and 2 t + 1 over the nodes so far, in powers of two
  float top[2] = {NOTHING, NOTHING}, total[2] = {0.0f, 0.0f}, factor[2];
  // Products become weights relative to the new top; sums so far need the factor.
  __device__ __forceinline__ void add(const Nodes& nodes, float (&c)[4]) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      c[e] *= TO_POWER, c[2 + e] = nodes.inside[1] ? c[2 + e] * TO_POWER : NOTHING;
      if (!nodes.inside[0]) c[e] = NOTHING;
      float highest = max(top[e], max(c[e], c[2 + e]));
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) highest = max(highest, shuffle(highest, mask));
      factor[e] = power2(top[e] - highest), top[e] = highest;
      c[e] = power2(c[e] - highest), c[2 + e] = power2(c[2 + e] - highest);
      total[e] = total[e] * factor[e] + c[e] + c[2 + e];
    }
  }
  __device__ __forceinline__ void leave(const Place& at, Space& space) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      total[e] = over_nodes(total[e]);
      int head = 2 * at.t + e;
      if (at.g == 0) space.tops[at.crew][at.member][head] = top[e], space.totals[at.crew][at.member][head] = total[e];
    }
  }
};
// The logarithm, to base 2, of a head's sum over all nodes.
__device__ __forceinline__ float log_total(const Space& space, int i, int head) {
  float top = NOTHING, total = 0.0f;
#pragma unroll
  for (int w = 0; w < CREW; w++) top = max(top, space.tops[i][w][head]);
#pragma unroll
  for (int w = 0; w < CREW; w++) total += power2(space.tops[i][w][head] - top) * space.totals[i][w][head];
  return top + log2f(total);
}

// q = W_q s + b and W_k^T q by heads, kept for the backward pass and, the latter, for the nodes: `coefficients` has for an
// instance the gradients of the values and q, a head's 16 at a time.
__device__ __forceinline__ void fold(const Place& at, Space& space, const float (&s)[2][4], const uint2* query,
                                     const uint2* key, const float* query_bias, uint2* folded,
                                     unsigned short* coefficients) {
  float q = map_rows(at, query, s) + query_bias[at.row()];
  coefficients[(size_t)at.row_instance() * 2 * WIDTH + WIDTH + at.row()] = rounded(q);
  float v[2][4];
  map_back(at, v, key, q);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint2 w = packed(v[i]);
    ((uint2*)space.rows[i][at.warp])[at.lane] = w;
    folded[((size_t)at.instance(i) * HEADS + at.warp) * ROW + at.lane] = w;
  }
  __syncthreads();
}

#ifdef START_STATE_WARPS
// `features` has for an instance what the heads pooled and the folded queries' gradients; `inner` the values and s. Without
// a norm's weight, `sums` is the result.
extern "C" __global__ void __launch_bounds__(START_STATE_WARPS * 32, 2)
start_state(const uint2* states, const uint4* x, const uint2* query, const uint2* key, const uint2* value,
            const uint2* output, const float* query_bias, const float* value_bias, const float* output_bias,
            const float* norm_weight, const float* norm_bias, uint2* folded, unsigned short* coefficients,
            uint2* features, unsigned short* inner, float* levels, float* sums, uint2* result, int n, int batch) {
  extern __shared__ uint4 shared[];
  Space& space = *(Space*)shared;
  Place at(batch);
  float s[2][4];
  read_features(at, s, states);
  fold(at, space, s, query, key, query_bias, folded, coefficients);

  word heads[16];
  take(heads, &space.rows[at.crew][at.g][at.t], 4);
  Softmax softmax;
  float pooled[8][4], weights[4];
  clear(pooled);
  for (int tile = at.member; 16 * tile < n; tile += CREW) {
    Nodes nodes(at, x, tile, n);
    nodes.products(weights, heads);
    softmax.add(nodes, weights);
#pragma unroll
    for (int k = 0; k < 32; k++) pooled[k / 4][k % 4] *= softmax.factor[k % 2];
    nodes.accumulate(pooled, weights);
  }
  softmax.leave(at, space);
  leave(at, space, pooled);
  __syncthreads();

  float v[2][4];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float level = log_total(space, i, at.warp);
    v[i][0] = v[i][1] = v[i][2] = v[i][3] = 0.0f;
#pragma unroll
    for (int w = 0; w < CREW; w++) add_part(at, v[i], space, i, w, power2(space.tops[i][w][at.warp] - level));
    features[((size_t)at.instance(i) * 2 * HEADS + at.warp) * ROW + at.lane] = packed(v[i]);
    if (at.lane == 0) levels[at.instance(i) * HEADS + at.warp] = level;
  }
  float y = map_rows(at, value, v) + value_bias[at.row()];
  unsigned short* kept = inner + (size_t)at.row_instance() * 2 * WIDTH + at.row();
  kept[0] = rounded(y), kept[WIDTH] = rounded(rows_of(at, s));
  space.vectors[0][at.lane / 16][at.row()] = y;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 2; i++) read(v[i], &space.vectors[0][i][4 * at.lane]);
  y = map_rows(at, output, v) + output_bias[at.row()] + rows_of(at, s);
  sums[(size_t)at.row_instance() * WIDTH + at.row()] = y;
  space.vectors[1][at.lane / 16][at.row()] = y;
  __syncthreads();

  if (at.warp >= 2 || !norm_weight) return;
  float r[4], weight[4], bias[4];
  read(r, &space.vectors[1][at.warp][4 * at.lane]);
  read(weight, norm_weight + 4 * at.lane), read(bias, norm_bias + 4 * at.lane);
  normalize(r);
#pragma unroll
  for (int e = 0; e < 4; e++) r[e] = r[e] * weight[e] + bias[e];
  result[(size_t)at.instance(at.warp) * ROW + at.lane] = packed(r);
}
#endif

#ifdef START_DISTRIBUTION_WARPS
extern "C" __global__ void __launch_bounds__(START_DISTRIBUTION_WARPS * 32, 2)
start_distribution(const uint2* states, const uint4* x, const uint2* query, const uint2* key, const float* query_bias,
                   uint2* folded, unsigned short* coefficients, float* levels, float* result, int n, int batch) {
  extern __shared__ uint4 shared[];
  Space& space = *(Space*)shared;
  Place at(batch);
  float s[2][4];
  read_features(at, s, states);
  fold(at, space, s, query, key, query_bias, folded, coefficients);

  word heads[16];
  take(heads, &space.rows[at.crew][at.g][at.t], 4);
  Softmax softmax;
  float weights[4], level[2];
  for (int tile = at.member; 16 * tile < n; tile += CREW) {
    Nodes nodes(at, x, tile, n);
    nodes.products(weights, heads);
    softmax.add(nodes, weights);
  }
  softmax.leave(at, space);
  __syncthreads();
#pragma unroll
  for (int e = 0; e < 2; e++) {
    level[e] = log_total(space, at.crew, 2 * at.t + e);
    if (at.member == 0 && at.g == 0) levels[at.instance(at.crew) * HEADS + 2 * at.t + e] = level[e];
  }
  for (int tile = at.member; 16 * tile < n; tile += CREW) {
    Nodes nodes(at, x, tile, n);
    nodes.products(weights, heads);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float first = weights[2 * r] * TO_POWER - level[0], second = weights[2 * r + 1] * TO_POWER - level[1];
      float top = max(first, second);
      top = max(top, shuffle(top, 1)), top = max(top, shuffle(top, 2));
      float total = over_row(power2(first - top) + power2(second - top));
      if (at.t == 0 && nodes.inside[r]) result[nodes.node[r]] = (top + log2f(total) - 3.0f) * 0.69314718f;
    }
  }
}
#endif

// From the gradients u of the logarithms of a head's weights a: those of the products, (u - a sum u) / 4, of the nodes, and
// the warps' parts of those of the folded queries. With VALUES, weights' gradients come from those of what the heads pooled
// (space.rows), else from those of the distribution.
template <bool VALUES>
__device__ __forceinline__ void nodes_backward(const Place& at, Space& space, const uint4* x, const uint4* folded,
                                               const float* levels, const float* distribution, const float* of_distribution,
                                               uint4* of_x, int n) {
  int instance = at.instance(at.crew);
  word heads[16], of_pooled[16];
  take(heads, folded + piece(instance * HEADS + at.g, at.t), 4);
  if constexpr (VALUES) take(of_pooled, &space.rows[at.crew][at.g][at.t], 4);
  float level[2], total[2] = {0.0f, 0.0f}, a[4], u[4];
#pragma unroll
  for (int e = 0; e < 2; e++) level[e] = levels[instance * HEADS + 2 * at.t + e];
  auto weigh = [&](const Nodes& nodes) {
    nodes.products(a, heads);
    if constexpr (VALUES) nodes.products(u, of_pooled);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float average, gradient;
      if constexpr (!VALUES) {
        average = distribution[nodes.node[r]] * 1.44269504f + 3.0f;  // of 8 heads, to base 2
        gradient = of_distribution[nodes.node[r]];
      }
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float exponent = a[2 * r + e] * TO_POWER - level[e];
        float weight = nodes.inside[r] ? power2(exponent) : 0.0f;
        if constexpr (VALUES)
          u[2 * r + e] *= weight;
        else
          u[2 * r + e] = nodes.inside[r] ? gradient * power2(exponent - average) : 0.0f;
        a[2 * r + e] = weight;
      }
    }
  };
  for (int tile = at.member; 16 * tile < n; tile += CREW) {
    Nodes nodes(at, x, tile, n);
    weigh(nodes);
    total[0] += u[0] + u[2], total[1] += u[1] + u[3];
  }
#pragma unroll
  for (int e = 0; e < 2; e++) {
    total[e] = over_nodes(total[e]);
    if (at.g == 0) space.totals[at.crew][at.member][2 * at.t + e] = total[e];
  }
  __syncthreads();
#pragma unroll
  for (int e = 0; e < 2; e++) {
    total[e] = 0.0f;
#pragma unroll
    for (int w = 0; w < CREW; w++) total[e] += space.totals[at.crew][w][2 * at.t + e];
  }
  float of_folded[8][4];
  clear(of_folded);
  for (int tile = at.member; 16 * tile < n; tile += CREW) {
    Nodes nodes(at, x, tile, n);
    weigh(nodes);
#pragma unroll
    for (int k = 0; k < 4; k++) u[k] = 0.25f * (u[k] - a[k] * total[k % 2]);
    nodes.accumulate(of_folded, u);
    word weights[2] = {pack(a[0], a[1]), pack(a[2], a[3])}, products[2] = {pack(u[0], u[1]), pack(u[2], u[3])};
#pragma unroll
    for (int c = 0; c < 4; c++) {
      word out[2][4];
#pragma unroll
      for (int p = 0; p < 4; p++) {
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        word head = transpose(heads[4 * c + p]);
        if constexpr (VALUES)
          mma(sum, weights[0], weights[1], products[0], products[1], transpose(of_pooled[4 * c + p]), head);
        else
          mma(sum, products[0], products[1], head);
        out[0][p] = pack(sum[0], sum[1]), out[1][p] = pack(sum[2], sum[3]);
      }
#pragma unroll
      for (int r = 0; r < 2; r++)
        if (nodes.inside[r])
          of_x[piece(nodes.node[r], at.t) + 4 * c] = make_uint4(out[r][0], out[r][1], out[r][2], out[r][3]);
    }
  }
  leave(at, space, of_folded);
  __syncthreads();
}

// The gradients of q and s; `outer` has for an instance those of the sum before the norm and of q, `sums` five vectors to
// add up over the instances: the third is that of the sum before the norm, if there is one (VALUES), the last that of q.
template <bool VALUES>
__device__ __forceinline__ void query_backward(const Place& at, Space& space, const uint2* query, const uint2* key,
                                               uint2* features, unsigned short* outer, float* sums, uint2* of_states) {
  float v[2][4];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    v[i][0] = v[i][1] = v[i][2] = v[i][3] = 0.0f;
#pragma unroll
    for (int w = 0; w < CREW; w++) add_part(at, v[i], space, i, w, 1.0f);
    features[((size_t)at.instance(i) * 2 * HEADS + HEADS + at.warp) * ROW + at.lane] = packed(v[i]);
  }
  float of_q = map_rows(at, key, v);
  outer[(size_t)at.row_instance() * 2 * WIDTH + WIDTH + at.row()] = rounded(of_q);
  sums[((size_t)at.row_instance() * 5 + 4) * WIDTH + at.row()] = of_q;
  map_back(at, v, query, of_q);
#pragma unroll
  for (int i = 0; i < 2; i++) write(&space.vectors[at.warp][i][4 * at.lane], v[i]);
  __syncthreads();
  if (at.warp >= 2) return;
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f}, part[4];
  if constexpr (VALUES) read(sum, sums + ((size_t)at.instance(at.warp) * 5 + 2) * WIDTH + 4 * at.lane);
#pragma unroll
  for (int w = 0; w < HEADS; w++) {
    read(part, &space.vectors[w][at.warp][4 * at.lane]);
#pragma unroll
    for (int e = 0; e < 4; e++) sum[e] += part[e];
  }
  of_states[(size_t)at.instance(at.warp) * ROW + at.lane] = packed(sum);
}

#ifdef START_STATE_BACKWARD_WARPS
extern "C" __global__ void __launch_bounds__(START_STATE_BACKWARD_WARPS * 32, 2)
start_state_backward(const uint4* x, const uint2* query, const uint2* key, const uint2* value, const uint2* output,
                     const float* norm_weight, const uint4* folded, const float* levels, const float* before,
                     const uint2* of_result, unsigned short* coefficients, uint2* features, unsigned short* outer, float* sums,
                     uint4* of_x, uint2* of_states, int n, int batch) {
  extern __shared__ uint4 shared[];
  Space& space = *(Space*)shared;
  Place at(batch);
  float g[2][4], of_sum[2][4], v[2][4];
  read_features(at, g, of_result);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float* to = sums + (size_t)at.instance(i) * 5 * WIDTH + 4 * at.lane;
    if (norm_weight) {
      float r[4], weight[4], of_norm[4], first = 0.0f, second = 0.0f;
      read(r, before + (size_t)at.instance(i) * WIDTH + 4 * at.lane), read(weight, norm_weight + 4 * at.lane);
      float scale = normalize(r);
#pragma unroll
      for (int e = 0; e < 4; e++) of_norm[e] = g[i][e] * weight[e], first += of_norm[e], second += of_norm[e] * r[e];
      first = over_lanes(first) / WIDTH, second = over_lanes(second) / WIDTH;
#pragma unroll
      for (int e = 0; e < 4; e++) of_sum[i][e] = scale * (of_norm[e] - first - r[e] * second), r[e] *= g[i][e];
      if (at.warp == i) write(to, r), write(to + WIDTH, g[i]);
    } else {
#pragma unroll
      for (int e = 0; e < 4; e++) of_sum[i][e] = g[i][e];
    }
    if (at.warp == i) {
      write(to + 2 * WIDTH, of_sum[i]);
      ((uint2*)outer)[(size_t)at.instance(i) * 2 * ROW + at.lane] = packed(of_sum[i]);
    }
  }
  map_back(at, v, output, rows_of(at, of_sum));
#pragma unroll
  for (int i = 0; i < 2; i++) write(&space.vectors[at.warp][i][4 * at.lane], v[i]);
  __syncthreads();
  float of_value = 0.0f;
#pragma unroll
  for (int w = 0; w < HEADS; w++) of_value += space.vectors[w][at.lane / 16][at.row()];
  coefficients[(size_t)at.row_instance() * 2 * WIDTH + at.row()] = rounded(of_value);
  sums[((size_t)at.row_instance() * 5 + 3) * WIDTH + at.row()] = of_value;
  map_back(at, v, value, of_value);
#pragma unroll
  for (int i = 0; i < 2; i++) ((uint2*)space.rows[i][at.warp])[at.lane] = packed(v[i]);
  __syncthreads();
  nodes_backward<true>(at, space, x, folded, levels, nullptr, nullptr, of_x, n);
  query_backward<true>(at, space, query, key, features, outer, sums, of_states);
}
#endif

#ifdef START_DISTRIBUTION_BACKWARD_WARPS
extern "C" __global__ void __launch_bounds__(START_DISTRIBUTION_BACKWARD_WARPS * 32, 2)
start_distribution_backward(const uint4* x, const uint2* query, const uint2* key, const uint4* folded, const float* levels,
                            const float* result, const float* of_result, uint2* features, unsigned short* outer, float* sums,
                            uint4* of_x, uint2* of_states, int n, int batch) {
  extern __shared__ uint4 shared[];
  Space& space = *(Space*)shared;
  Place at(batch);
  nodes_backward<false>(at, space, x, folded, levels, result, of_result, of_x, n);
  query_backward<false>(at, space, query, key, features, outer, sums, of_states);
}
#endif
