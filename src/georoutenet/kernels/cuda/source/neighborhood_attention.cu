// Eqs. attention_logit, attention_weights and node_message of the neighborhoods: 8 heads, up to 16 neighbors.
//
// A warp takes one city at a time. Its neighbors' rows are a tile in shared memory, copied there while the city before
// is computed. Scores are heads x neighbors: lane 4 g + t gets those of head g and slots 4 t ... 4 t + 3. So a head's
// weights lie in the four lanes that hold its features 16 g + 4 t ... + 3 of a node, and packed to bfloat16 they are an
// operand of the sums over neighbors.
constexpr float SCALE = 0.25f;  // 1 / sqrt(features of a head)

// Row 8 r + g of a tile is the neighbor in this slot, so that a lane's four slots follow each other.
__device__ __forceinline__ int slot(int r, int g) { return 4 * (g / 2) + g % 2 + 2 * r; }
// Where the 16-byte pieces of a tile lie: without bank conflicts for 8 rows at one piece and for 2 rows at 4 pieces.
__device__ __forceinline__ int spot(int row, int piece) { return row * 16 + (piece ^ (row / 2 % 4 + row % 2 * 4)); }

struct Place : Lane {
  int even, odd, column;  // spots of pieces t and 4 + t of row g; of what the lane shows `load_transposed`
  __device__ Place() : even(spot(g, t)), odd(spot(g, 4 + t)), column(spot(lane % 8 + lane / 16 * 8, lane / 8 % 2)) {
    keep(even), keep(odd), keep(column), keep(g), keep(t), keep(lane);
  }
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
__device__ __forceinline__ Neighbor neighbor(const int* index, const unsigned char* mask, const float* distance,
                                             int node, int width, int wide, int lane) {
  int w = lane % 16, at = node * width + min(w, width - 1);
  return {index[at << wide], w < width ? mask[at] : 0, distance[at]};
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
// Scores with a vector of each head: of head g, piece 4 c + t. The first two words of each piece are multiplied in the
// upper rows of mma, the others in the lower ones; what else comes out of it is not used.
struct Scores {
  float first[2][4] = {}, second[2][4] = {};
  __device__ __forceinline__ void add(int r, uint4 vector, uint4 x) {
    mma(first[r], vector.x, vector.z, vector.y, vector.w, x.x, x.y);
    mma(second[r], vector.x, vector.z, vector.y, vector.w, x.z, x.w);
  }
  // With the neighbors' rows among `nodes`, each head's features with its own: `own`, of lanes that hold some of them.
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
    if (part == 3 && width <= 12) break;  // a branch less lets loads of several parts be under way
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
// Sums over the tile's rows: (features of pieces k and k + 1 x heads) += the rows, transposed, times weights of heads.
struct Columns {
  word x[4];
  __device__ __forceinline__ Columns(const uint4* tile, int k, const Place& at) {
    load_transposed(x, tile + ((at.column ^ k % 8) + k / 8 * 8));
  }
  __device__ __forceinline__ void add(float (&c)[4], const word (&weights)[2]) const {
    mma(c, x[0], x[1], x[2], x[3], weights[0], weights[1]);
  }
};
// Averages for heads 2 t and 2 t + 1 of a feature become features 32 c + 8 t ... + 7 of head g: word 4 c + p of feature
// 32 c + 8 u + 2 p + h goes to row 2 u + h of matrix 4 c + p. Between `put` and `write` the warp waits for its lanes.
constexpr int COLUMN = 40;  // words from one 8 x 8 matrix to the next
struct Transposed {
  word *to, *from;
  __device__ Transposed(void* words, const Place& at)
      : to((word*)words + at.g / 2 * COLUMN + at.g % 2 * 4 + at.t),
        from((word*)words + at.lane / 8 * COLUMN + at.lane % 8 * 4) {}
  __device__ __forceinline__ void put(int j, word both) const { to[j / 4 * 4 * COLUMN + j % 4 * 8] = both; }
  __device__ __forceinline__ void write(uint4* edges, int node, const Place& at) const {
#pragma unroll
    for (int c = 0; c < 4; c++) {
      word x[4];
      load_transposed(x, from + 4 * c * COLUMN);
      edges[piece(node * 8 + at.g, 4 * c + at.t)] = make_uint4(x[0], x[1], x[2], x[3]);
    }
  }
};

#ifdef ATTENTION_FORWARD_WARPS
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
  int node = share * blockIdx.x + threadIdx.x / 32, start = node / n * n, city = -1;
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
    while (node - start >= n) start += n;
    int row = city < 0 ? node - start : city;  // padding reads the city itself
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
    word mixed[16];
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      float both[4] = {};
      Columns(tile, j, at).add(both, weights);
      mixed[j] = pack(both[0], both[1]), mixed[j + 1] = pack(both[2], both[3]);
    }
    __syncwarp();
    Transposed transposed(tile, at);
#pragma unroll
    for (int j = 0; j < 16; j++) transposed.put(j, mixed[j]);
    values[node * 32 + at.lane] = weigh(weights, v + start * pitch, row, pitch, width, 1.0f, at);
    __syncwarp();
    transposed.write(edges, node, at);
    __syncwarp();
    node = following, city = next_city, far = next_far;
  }
}
#endif

#ifdef ATTENTION_PAIRS_WARPS
// What a city's averages get as gradient, and its weights: head g, as operands of scores.
struct Upstream {
  uint4 edges[4], values;
  uint2 weights;
  __device__ __forceinline__ Upstream(const uint4* dedges, const uint4* dvalues, const uint2* alpha, int node, int edge_pitch,
                                      int head_pitch, const Place& at) {
    const uint4* row = dedges + ((size_t)node * edge_pitch + at.g * head_pitch + at.t);
#pragma unroll
    for (int c = 0; c < 4; c++) edges[c] = row[4 * c];
    values = dvalues[node * 16 + 4 * (at.g / 2) + at.t];
    weights = alpha[node * 32 + at.lane];
  }
};

// Gradients of queries, and of scores, as pairs of a weight and its score's gradient; those of edge states are added,
// those of edge bias and strength summed per block. The averages of edge states are recomputed: `edges`, which may be
// where their gradients are, as those of a city are read before; what a warp reads after its last city is not used.
extern "C" __global__ void __launch_bounds__(ATTENTION_PAIRS_WARPS * 32, 1)
attention_pairs(const uint4* k, const uint4* v, const uint4* e, const float* weight, const int* index,
        const unsigned char* mask, const float* distance, const uint2* alpha, const uint4* dvalues, const uint4* dedges,
        uint4* de, uint4* edges, uint4* pairs, uint2* dq, float* partial, int nodes, int n, int pitch,
        int edge_pitch, int head_pitch, int width, int wide) {
  extern __shared__ uint4 shared[];
  Place at;
  uint4* bias = shared + ATTENTION_PAIRS_WARPS * 1024;  // heads 2 t and 2 t + 1 of column g, by n-tile
  uint4* tiles = shared + threadIdx.x / 32 * 1024;      // edge states and their gradients, twice
  Transposed transposed((word*)(bias + 128) + threadIdx.x / 32 * 16 * COLUMN, at);
  for (int f = threadIdx.x; f < 512; f += blockDim.x) {
    const float* w = weight + f % 4 * 2 * WIDTH + feature(f / 128 * 4 + f % 128 / 32, f % 32 / 4);
    ((word*)bias)[(f / 128 * 32 + f % 32) * 4 + f % 128 / 32] = pack(w[0], w[WIDTH]);
  }
  __syncthreads();
  int share = (nodes + gridDim.x - 1) / gridDim.x, last = min(nodes, share * ((int)blockIdx.x + 1));
  int node = share * blockIdx.x + threadIdx.x / 32, start = node / n * n, city = -1;
  float far = 0, dstrength = 0;
  float dweight[8][4] = {};
  Neighbor next = {};
  Upstream upstream(dedges, dvalues, alpha, min(node, nodes - 1), edge_pitch, head_pitch, at);
  if (node < last) {
    next = neighbor(index, mask, distance, node, width, wide, at.lane);
    city = next.city(), far = next.far;
    fetch(tiles, e + piece(node * n, 0), city, at);
    fetch(tiles + 256, de + piece(node * n, 0), city, at);
    next = neighbor(index, mask, distance, min(node + ATTENTION_PAIRS_WARPS, nodes - 1), width, wide, at.lane);
  }
  commit_copies();
  for (int stage = 0; node < last; stage ^= 512) {
    uint4* tile = tiles + stage;
    int following = node + ATTENTION_PAIRS_WARPS, next_city = next.city();
    float next_far = next.far;
    if (following < last) {
      fetch(tiles + (stage ^ 512), e + piece(following * n, 0), next_city, at);
      fetch(tiles + (stage ^ 512) + 256, de + piece(following * n, 0), next_city, at);
      next = neighbor(index, mask, distance, min(following + ATTENTION_PAIRS_WARPS, nodes - 1), width, wide, at.lane);
    }
    commit_copies();
    while (node - start >= n) start += n;
    int row = city < 0 ? node - start : city;  // padding reads the city itself
    word weights[2] = {upstream.weights.x, upstream.weights.y};
    Scores change;  // of the weights
    change.add_nodes(upstream.values, v + start * pitch, row, pitch, at);
    wait_for_copies<1>();
    __syncwarp();
#pragma unroll
    for (int c = 0; c < 4; c++) {
      change.add(0, upstream.edges[c], tile[at(0, c)]);
      change.add(1, upstream.edges[c], tile[at(1, c)]);
    }
    float a[4] = {low(weights[0]), high(weights[0]), low(weights[1]), high(weights[1])}, d[4], mean = 0;
#pragma unroll
    for (int w = 0; w < 4; w++) d[w] = change(w), mean = fmaf(a[w], d[w], mean);
    mean = over_row(mean);
    if (city < 0) far = 0;
#pragma unroll
    for (int w = 0; w < 4; w++) {
      d[w] = a[w] * (d[w] - mean);
      dstrength = fmaf(-d[w], from_lane(far, 4 * at.t + w), dstrength);
    }
    word ds[2] = {pack(d[0], d[1]), pack(d[2], d[3])};
    pairs[node * 32 + at.lane] = make_uint4(weights[0] & 0xffff | ds[0] << 16, weights[0] >> 16 | ds[0] & 0xffff0000u,
                                            weights[1] & 0xffff | ds[1] << 16, weights[1] >> 16 | ds[1] & 0xffff0000u);
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      Columns columns(tile, j, at);
      float both[4] = {};
      columns.add(dweight[j / 2], ds);
      columns.add(both, weights);
      transposed.put(j, pack(both[0], both[1])), transposed.put(j + 1, pack(both[2], both[3]));
    }
    __syncwarp();
    word* to = (word*)tile + at.lane;
#pragma unroll
    for (int c = 0; c < 4; c++) {
      uint4 x = upstream.edges[c];
      to[128 * c] = x.x, to[128 * c + 32] = x.y, to[128 * c + 64] = x.z, to[128 * c + 96] = x.w;
    }
    upstream = Upstream(dedges, dvalues, alpha, min(following, nodes - 1), edge_pitch, head_pitch, at);
    dq[node * 32 + at.lane] = weigh(ds, k + start * pitch, row, pitch, width, SCALE, at);
    word left[4] = {transpose(weights[0]), transpose(weights[1]), transpose(ds[0]), transpose(ds[1])};
    int real[2] = {from_lane(city, slot(0, at.g)), from_lane(city, slot(1, at.g))};
    __syncwarp();
    transposed.write(edges, node, at);
    // a dedges + ds weight for the two rows of this lane
#pragma unroll
    for (int c = 0; c < 4; c++) {
      word x[4];
      uint4 b = bias[32 * c + at.lane], old[2] = {tile[256 + at(0, c)], tile[256 + at(1, c)]};
      load_transposed(x, (word*)tile + (4 * c + at.lane / 8) * 32 + at.lane % 8 * 4);
      word sum[2][4];
#pragma unroll
      for (int p = 0; p < 4; p++) {
        word one = p < 2 ? p ? old[0].y : old[0].x : p == 2 ? old[0].z : old[0].w;
        word two = p < 2 ? p ? old[1].y : old[1].x : p == 2 ? old[1].z : old[1].w;
        float acc[4] = {low(one), high(one), low(two), high(two)};
        mma(acc, left[0], left[1], left[2], left[3], x[p], p < 2 ? p ? b.y : b.x : p == 2 ? b.z : b.w);
        sum[0][p] = pack(acc[0], acc[1]), sum[1][p] = pack(acc[2], acc[3]);
      }
#pragma unroll
      for (int r = 0; r < 2; r++)
        if (real[r] >= 0)
          de[piece(node * n + real[r], 4 * c + at.t)] = make_uint4(sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
    }
    __syncwarp();
    node = following, city = next_city, far = next_far;
  }
  wait_for_copies();
  __syncthreads();
  float* sums = (float*)shared;  // (8, 128) for each warp, then what the warps have of strength
  float* mine = sums + threadIdx.x / 32 * 8 * WIDTH;
#pragma unroll
  for (int j = 0; j < 8; j++)
#pragma unroll
    for (int x = 0; x < 4; x++) mine[(2 * at.t + x % 2) * WIDTH + 16 * j + x / 2 * 8 + at.g] = dweight[j][x];
  dstrength = over_row(dstrength);
  for (int step = 4; step < 32; step *= 2) dstrength += shuffle(dstrength, step);
  float* strengths = sums + ATTENTION_PAIRS_WARPS * 8 * WIDTH;
  if (at.lane == 0) strengths[threadIdx.x / 32] = dstrength;
  __syncthreads();
  for (int f = threadIdx.x; f < 9 * WIDTH; f += blockDim.x) {
    float sum = 0;
    for (int warp = 0; warp < ATTENTION_PAIRS_WARPS; warp++)
      sum += f < 8 * WIDTH ? sums[warp * 8 * WIDTH + f] : f == 8 * WIDTH ? strengths[warp] : 0;
    partial[blockIdx.x * 9 * WIDTH + f] = sum;
  }
}
#endif

#ifdef ATTENTION_CITIES_WARPS
__device__ __forceinline__ void add_row(float (&sum)[4], float a, uint2 x) {
  sum[0] = fmaf(a, low(x.x), sum[0]), sum[1] = fmaf(a, high(x.x), sum[1]);
  sum[2] = fmaf(a, low(x.y), sum[2]), sum[3] = fmaf(a, high(x.y), sum[3]);
}

// Gradients of keys and values, a warp for two cities at a time: sums over the cities they are neighbors of, in order.
// A job is 64 cities of an instance; before that, the sums of what `attention_pairs` left, 128 columns each.
extern "C" __global__ void __launch_bounds__(ATTENTION_CITIES_WARPS * 32, 2)
attention_cities(const uint2* q, const uint2* dvalues, const unsigned short* slots, const word* pairs,
        const float4* partial, uint2* dk, uint2* dv, float4* sums, int nodes, int n, int pitch, int width, int slots_pitch,
        int rows) {
  __shared__ float4 parts[ATTENTION_CITIES_WARPS * 32];
  __shared__ uint4 lists[ATTENTION_CITIES_WARPS * 2 * 17];  // for each of two cities, indices into `pairs`: 64 and a few
  Lane at;
  int parts_of_instance = (n + 63) / 64, jobs = 9 + nodes / n * parts_of_instance;
  for (int job = blockIdx.x; job < jobs; job += gridDim.x) {
    if (job < 9) {
      float4 sum = make_float4(0, 0, 0, 0);
      auto add = [&](float4 x) { sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w; };
#pragma unroll 4
      for (int row = threadIdx.x / 32; row < rows; row += ATTENTION_CITIES_WARPS)
        add(partial[(row * 9 + job) * 32 + at.lane]);
      parts[threadIdx.x] = sum;
      __syncthreads();
      if (threadIdx.x < 32) {
        for (int warp = 1; warp < ATTENTION_CITIES_WARPS; warp++) add(parts[warp * 32 + at.lane]);
        sums[job * 32 + at.lane] = sum;
      }
      __syncthreads();
      continue;
    }
    int first = (job - 9) / parts_of_instance * n, begin = (job - 9) % parts_of_instance * 64, end = min(n, begin + 64);
    for (int j = begin + threadIdx.x / 32 * 2; j < end; j += 2 * ATTENTION_CITIES_WARPS) {
      float of_values[2][4] = {}, of_keys[2][4] = {};
      for (int block = 0; block < n; block += 64) {
        uint4* list = lists + threadIdx.x / 32 * 34;
        int count[2] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
          int i = block + 32 * half + at.lane;
          word two = i < n ? *(const word*)(slots + ((first + i) * slots_pitch + j)) : width * 0x10001;
#pragma unroll
          for (int side = 0; side < 2; side++) {
            word slot = side ? two >> 16 : two & 0xffff, found = votes(slot < width);
            int place = count[side] + __popc(found & (1u << at.lane) - 1);
            if (slot < width) ((int*)(list + 17 * side))[place] = (first + i) * 128 + slot;
            count[side] += __popc(found);
          }
        }
        if (at.lane < 8) ((int*)(list + 17 * (at.lane / 4)))[(at.lane < 4 ? count[0] : count[1]) + at.lane % 4] = 0;
        __syncwarp();
#pragma unroll
        for (int side = 0; side < 2; side++)
          for (int k = 0; k < count[side]; k += 4) {
            uint4 four = list[17 * side + k / 4];
            word place[4] = {four.x, four.y, four.z, four.w}, a[4];
            uint2 x[4], y[4];
#pragma unroll
            for (int u = 0; u < 4; u++) {
              a[u] = k + u < count[side] ? pairs[place[u] + at.g * 16] : 0;
              x[u] = dvalues[place[u] / 128 * 32 + at.lane];
              y[u] = q[place[u] / 128 * (2 * pitch) + at.lane];
            }
#pragma unroll
            for (int u = 0; u < 4; u++) {
              add_row(of_values[side], low(a[u]), x[u]);
              add_row(of_keys[side], high(a[u]), y[u]);
            }
          }
        __syncwarp();
      }
#pragma unroll
      for (int side = 0; side < 2; side++)
        if (j + side < end) {
          float(&c)[4] = of_values[side], (&d)[4] = of_keys[side];
          int to = (first + j + side) * 32 + at.lane;
          dv[to] = make_uint2(pack(c[0], c[1]), pack(c[2], c[3]));
          dk[to] = make_uint2(pack(d[0] * SCALE, d[1] * SCALE), pack(d[2] * SCALE, d[3] * SCALE));
        }
    }
  }
}
#endif
