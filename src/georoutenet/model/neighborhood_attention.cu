// Eqs. attention_logit, attention_weights and node_message of the neighborhoods: 8 heads, up to 16 neighbors.
//
// A warp takes one city at a time. Its neighbors' rows are a tile in shared memory, copied there while the city before
// is computed. Scores are heads x neighbors: lane 4 g + t gets those of head g and slots 4 t ... 4 t + 3. So a head's
// weights lie in the four lanes that hold its features 16 g + 4 t ... + 3 of a node, and packed to bfloat16 they are an
// operand of the sums over neighbors.
#ifndef ATTENTION_FORWARD_WARPS
#define ATTENTION_FORWARD_WARPS 16
#endif
constexpr float SCALE = 0.25f;  // 1 / sqrt(features of a head)
constexpr int COLUMN = 40;      // words from one 8 x 8 matrix of `scatter_words` to the next

// Row 8 r + g of a tile is the neighbor in this slot, so that a lane's four slots follow each other.
__device__ __forceinline__ int slot(int r, int g) { return 4 * (g / 2) + g % 2 + 2 * r; }
// Where the 16-byte pieces of a tile lie: without bank conflicts for 8 rows at one piece and for 2 rows at 4 pieces.
__device__ __forceinline__ int spot(int row, int piece) { return row * 16 + (piece ^ (row / 2 % 4 + row % 2 * 4)); }

struct Place : Lane {
  int even, odd, column;  // spots of pieces t and 4 + t of row g; of what the lane shows `load_transposed`
  __device__ Place() : even(spot(g, t)), odd(spot(g, 4 + t)), column(spot(lane % 8 + lane / 16 * 8, lane / 8 % 2)) {}
  // Piece 4 c + t of row 8 r + g.
  __device__ __forceinline__ int operator()(int r, int c) const { return (c % 2 ? odd : even) + 128 * r + c / 2 * 8; }
  __device__ __forceinline__ bool is_own() const { return t / 2 == g % 2; }
};

__device__ __forceinline__ int from_lane(int x, int lane) { return (int)from_lane((word)x, lane); }
// The neighbor in slot lane % 16 as it was loaded; what asks for it waits for memory.
struct Neighbor {
  int place, is_real;
  float far;
  __device__ int city() const { return is_real ? place : -1; }
};
__device__ __forceinline__ Neighbor neighbor(const int* index, const unsigned char* mask, const float* distance, int node,
                                             int width, int wide, int lane) {
  int w = lane % 16, at = node * width + min(w, width - 1);
  return {index[at << wide], w < width && mask[at], distance[at]};
}
// The pairs of a city with its neighbors, on their way to shared memory; `pairs` are those of the city with all.
__device__ __forceinline__ void fetch(uint4* tile, const uint4* pairs, int city, const Place& at) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int j = from_lane(city, slot(r, at.g));
    const uint4* row = pairs + (max(j, 0) * 16 + at.t);
#pragma unroll
    for (int c = 0; c < 4; c++) copy16(tile + at(r, c), row + 4 * c, j >= 0);
  }
}
// Scores with a vector of each head: of head g, piece 4 c + t. The first two words of each piece are multiplied in mma's
// upper rows, the others in the lower ones; what the halves have beside that is nothing.
struct Scores {
  float first[2][4] = {}, second[2][4] = {};
  __device__ __forceinline__ void add(int r, uint4 vector, uint4 x) {
    mma(first[r], vector.x, vector.z, vector.y, vector.w, x.x, x.y);
    mma(second[r], vector.x, vector.z, vector.y, vector.w, x.z, x.w);
  }
  // With the neighbors' rows among `nodes` and, of a node's row, what belongs to head g: `own` of the lanes that own it.
  __device__ __forceinline__ void add_nodes(uint4 own, const uint4* nodes, int city, int pitch, const Place& at) {
    uint4 x[2][4];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const uint4* row = nodes + (from_lane(city, slot(r, at.g)) * pitch + at.t);
#pragma unroll
      for (int c = 0; c < 4; c++) x[r][c] = row[4 * c];
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
      bool is_own = at.g / 2 == c && at.is_own();
      uint4 vector = make_uint4(is_own ? own.x : 0, is_own ? own.y : 0, is_own ? own.z : 0, is_own ? own.w : 0);
      add(0, vector, x[0][c]);
      add(1, vector, x[1][c]);
    }
  }
  // Of slot 4 t + w.
  __device__ __forceinline__ float operator()(int w) const { return first[w / 2][w % 2] + second[w / 2][2 + w % 2]; }
};
// Sums over the neighbors' rows among `nodes`, each head's features times its weights: features 4 lane ... + 3.
__device__ __forceinline__ uint2 weigh(const word (&weights)[2], const uint4* nodes, int city, int pitch, int width,
                                       float scale, const Lane& at) {
  float sum[4] = {};
#pragma unroll
  for (int part = 0; part < 4; part++) {
    if (4 * part >= width) break;
    uint2 x[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
      x[k] = *((const uint2*)nodes + (from_lane(city, 4 * part + k) * (2 * pitch) + at.lane));
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      word two = from_lane(weights[k / 2], 4 * at.g + part);
      float a = low(two), b = high(two);
      sum[0] = fmaf(b, low(x[k + 1].x), fmaf(a, low(x[k].x), sum[0]));
      sum[1] = fmaf(b, high(x[k + 1].x), fmaf(a, high(x[k].x), sum[1]));
      sum[2] = fmaf(b, low(x[k + 1].y), fmaf(a, low(x[k].y), sum[2]));
      sum[3] = fmaf(b, high(x[k + 1].y), fmaf(a, high(x[k].y), sum[3]));
    }
  }
  return make_uint2(pack(sum[0] * scale, sum[1] * scale), pack(sum[2] * scale, sum[3] * scale));
}
// c (features of pieces k and k + 1 x heads) += the tile's rows, transposed, times weights of heads.
__device__ __forceinline__ void average(float (&c)[4], const uint4* tile, int k, const word (&weights)[2], const Place& at) {
  word x[4];
  load_transposed(x, tile + ((at.column ^ k % 8) + k / 8 * 8));
  mma(c, x[0], x[1], x[2], x[3], weights[0], weights[1]);
}

extern "C" __global__ void __launch_bounds__(ATTENTION_FORWARD_WARPS * 32, 1)
attention_forward(const uint4* q, const uint4* k, const uint4* v, const uint4* e, const float* weight, const float* strength,
        const int* index, const unsigned char* mask, const float* distance, uint2* values, uint4* edges, uint2* alpha,
        int nodes, int n, int pitch, int width, int wide) {
  extern __shared__ uint4 shared[];
  Place at;
  uint4* tiles = shared + threadIdx.x / 32 * 512;
  uint4 bias[4];
#pragma unroll
  for (int c = 0; c < 4; c++) {
    const float* w = weight + at.g * WIDTH + 32 * c + 8 * at.t;
    bias[c] = make_uint4(pack(w[0], w[1]), pack(w[2], w[3]), pack(w[4], w[5]), pack(w[6], w[7]));
  }
  float gamma = *strength;
  int share = (nodes + gridDim.x - 1) / gridDim.x, last = min(nodes, share * ((int)blockIdx.x + 1));
  int node = share * blockIdx.x + threadIdx.x / 32, city = -1;
  float far = 0;
  Neighbor next = {};
  if (node < last) {
    next = neighbor(index, mask, distance, node, width, wide, at.lane);
    city = next.city(), far = next.far;
    fetch(tiles, e + piece(node * n, 0), city, at);
    next = neighbor(index, mask, distance, min(node + ATTENTION_FORWARD_WARPS, nodes - 1), width, wide, at.lane);
  }
  commit_copies();
  for (int stage = 0; node < last; stage ^= 256) {
    uint4* tile = tiles + stage;
    int following = node + ATTENTION_FORWARD_WARPS, next_city = next.city();
    float next_far = next.far;
    if (following < last) {
      fetch(tiles + (stage ^ 256), e + piece(following * n, 0), next_city, at);
      next = neighbor(index, mask, distance, min(following + ATTENTION_FORWARD_WARPS, nodes - 1), width, wide, at.lane);
    }
    commit_copies();
    int start = node / n * n, row = city < 0 ? node - start : city;  // padding reads the city itself
    float less = city < 0 ? 1e30f : gamma * far, top = -1e30f, sum = 0, a[4];
    Scores with_queries, of_edges;
    with_queries.add_nodes(q[node * pitch + 4 * (at.g / 2) + at.t], k + start * pitch, row, pitch, at);
    wait_for_copies<1>();
    __syncwarp();
#pragma unroll
    for (int c = 0; c < 4; c++) {
      of_edges.add(0, bias[c], tile[at(0, c)]);
      of_edges.add(1, bias[c], tile[at(1, c)]);
    }
#pragma unroll
    for (int w = 0; w < 4; w++) {
      a[w] = fmaf(SCALE, with_queries(w), of_edges(w)) - from_lane(less, 4 * at.t + w);
      top = fmaxf(top, a[w]);
    }
    top = fmaxf(top, shuffle(top, 1));
    top = fmaxf(top, shuffle(top, 2));
#pragma unroll
    for (int w = 0; w < 4; w++) a[w] = __expf(a[w] - top), sum += a[w];
    float per = 1.0f / over_row(sum);
    word weights[2] = {pack(a[0] * per, a[1] * per), pack(a[2] * per, a[3] * per)};
    alpha[node * 32 + at.lane] = make_uint2(weights[0], weights[1]);
    // Heads 2 t and 2 t + 1 of a feature become features 32 c + 8 t ... + 7 of head g: word 4 c + p of feature
    // 32 c + 8 u + 2 p + h goes to row 2 u + h of matrix 4 c + p.
    word mixed[16];
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      float both[4] = {};
      average(both, tile, j, weights, at);
      mixed[j] = pack(both[0], both[1]), mixed[j + 1] = pack(both[2], both[3]);
    }
    __syncwarp();
    word* to = (word*)tile + (at.g / 2 * COLUMN + at.g % 2 * 4 + at.t);
#pragma unroll
    for (int j = 0; j < 16; j++) to[j / 4 * 4 * COLUMN + j % 4 * 8] = mixed[j];
    values[node * 32 + at.lane] = weigh(weights, v + start * pitch, row, pitch, width, 1.0f, at);
    __syncwarp();
#pragma unroll
    for (int c = 0; c < 4; c++) {
      word x[4];
      load_transposed(x, (word*)tile + (4 * c + at.lane / 8) * COLUMN + at.lane % 8 * 4);
      edges[piece(node * 8 + at.g, 4 * c + at.t)] = make_uint4(x[0], x[1], x[2], x[3]);
    }
    __syncwarp();
    node = following, city = next_city, far = next_far;
  }
}
