// The gradients of a layer's parameters at the nodes: products over rows of what node_forward and node_backward left
// behind. See node_gradients.py for the order of the matrices, each of 128 x 128 numbers.
//
// A block takes one matrix and a chunk of the rows, and leaves its part of the sum to `node_totals`. Two teams of 8 warps,
// or one where shared memory is short, take turns at stages of the rows, so one works while the other waits. A stage in shared memory is 4 tiles of 16 rows of
// the left operand and 4 of the right one; by heads, it is a tile of 16 rows with all heads' 16 features, and for each
// head one with 128 features. Sums over the left operand's rows, gradients of biases, are products with ones.
constexpr int TEAM = 256;               // threads
constexpr int PIECES = 16 * WIDTH / 8;  // of 16 bytes in a tile
constexpr int STAGE = 9 * PIECES;
constexpr int STAGES = 3;
constexpr int SLAB = (WIDTH + 1) * WIDTH;  // a part: a matrix, and the sums over rows of its left operand
enum Matrices { EDGE_VALUE, OUTPUT, QUERY, KEY, GATE, VALUE = 6, FFN_OUTPUT = 8, MAPS = 10 };

#ifdef NODE_GRADIENTS_WARPS
constexpr int TEAMS = NODE_GRADIENTS_WARPS * 32 / TEAM;  // of a block
constexpr int COLUMNS = 8 * WIDTH / 8;  // pieces of a row of the gradients
constexpr int OF_GATE = 0, OF_OUTPUT = 4, OF_NODE = 5, OF_PROJECTED = 7;
constexpr int NORM1 = 4;  // slab of what was kept

struct Rows {
  const uint4* from;
  int stride;  // in pieces
};

// Calls fetch(k, to) and, when what it copied is there, use(from), for the team's stages k.
template <class Fetch, class Use>
__device__ __forceinline__ void walk(uint4* stages, int team, int count, Fetch fetch, Use use) {
  int slot = 0, ahead = 0;
#pragma unroll
  for (int k = 0; k < STAGES - 1; k++) {
    if (ahead < count) fetch(ahead, stages + k * STAGE);
    commit_copies();
    ahead++;
  }
  for (int k = 0; k < count; k++) {
    wait_for_copies<STAGES - 2>();
    barrier(team + 1, TEAM);  // every thread's copies are there, and nobody reads the stage before any more
    if (ahead < count) fetch(ahead, stages + (slot ? slot - 1 : STAGES - 1) * STAGE);
    commit_copies();
    ahead++;
    use(stages + slot * STAGE);
    slot = slot + 1 == STAGES ? 0 : slot + 1;
  }
}

extern "C" __global__ void __launch_bounds__(NODE_GRADIENTS_WARPS * 32, 1)
node_gradients(const uint4* of_map0, const uint4* of_map1, const uint4* of_map2, const uint4* of_map3,
               const uint4* of_map4, const uint4* gradients, const uint4* products, const uint4* of_values,
               const uint4* edges, const uint4* kept, const uint4* state, float* parts, int rows, int matrices,
               int chunk, int by_heads, int chunk_by_heads) {
  extern __shared__ uint4 shared[];
  Lane at;
  int team = from_lane(threadIdx.x / TEAM, 0), thread = threadIdx.x % TEAM, warp = thread / 32;
  int slice = warp % 4, side = warp / 4;
  uint4* stages = shared + team * STAGES * STAGE;
  // Thread 16 row + p copies piece p of a row of each tile, to where eight rows' same pieces lie in different banks.
  int row = thread / 16, column = thread % 16, place = thread ^ row % 8;
  // Lanes' rows: of the left operand, matrices (rows 0-7, features 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15); of the
  // right one, with the middle two exchanged. So come mma's operands in order: a tile's left, and two tiles' right.
  int matrix = at.lane / 8, last = at.lane % 8;
  int left_row = (last + matrix / 2 * 8) * 16, right_row = (last + matrix % 2 * 8) * 16;

  float sum[2][8][4] = {}, over_rows[4] = {};
  int out[2], in[2];  // the first row and column of both halves of the warp's sums
  if (blockIdx.x < by_heads) {
    int first = blockIdx.x * chunk_by_heads, end = min(first + chunk_by_heads, rows);
    first += 16 * team;
    auto fetch = [&](int k, uint4* to) {
      int from = first + k * 16 * TEAMS + row;
      bool inside = from < end;
      size_t at_row = inside ? from : 0;
      copy16(to + place, of_values + at_row * 16 + column, inside);
#pragma unroll
      for (int h = 0; h < 8; h++)
        copy16(to + (1 + h) * PIECES + place, edges + (at_row * 8 + h) * 16 + column, inside);
    };
    const int left = left_row + (2 * warp + matrix % 2 ^ last), right = right_row + (matrix / 2 ^ last);
    walk(stages, team, (end - first + 16 * TEAMS - 1) / (16 * TEAMS), fetch, [&](const uint4* from) {
      word a[4];
      load_transposed(a, from + left);
#pragma unroll
      for (int q = 0; q < 8; q++) {
        word b[4];
        load_transposed(b, from + (1 + warp) * PIECES + (right ^ 2 * q));
        mma(sum[q / 4][2 * q % 8], a[0], a[1], a[2], a[3], b[0], b[1]);
        mma(sum[q / 4][2 * q % 8 + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    });
    out[0] = out[1] = 16 * warp, in[0] = 0, in[1] = 64;
  } else {
    int number = 1 + (blockIdx.x - by_heads) % matrices, part = (blockIdx.x - by_heads) / matrices;
    auto gradient = [&](int k) { return Rows{gradients + k * 16, COLUMNS}; };
    auto slab = [&](int k) { return Rows{kept + (size_t)k * rows * 16, 16}; };
    Rows left, right;
    if (number < KEY)
      left = gradient(OF_NODE + number - OUTPUT), right = slab(number - OUTPUT);
    else if (number == KEY)  // its matrix is used from the other side
      left = slab(2), right = gradient(OF_PROJECTED);
    else if (number < FFN_OUTPUT)
      left = gradient(OF_GATE + number - GATE), right = slab(NORM1);
    else if (number < MAPS)
      left = gradient(OF_OUTPUT), right = Rows{products + (number - FFN_OUTPUT) * 16, 32};
    else {
      int map = number - MAPS;
      left = Rows{map == 0 ? of_map0 : map == 1 ? of_map1 : map == 2 ? of_map2 : map == 3 ? of_map3 : of_map4, 16};
      right = Rows{state, 16};
    }
    int first = part * chunk, end = min(first + chunk, rows);
    first += 64 * team;
    auto fetch = [&](int k, uint4* to) {
#pragma unroll
      for (int tile = 0; tile < 4; tile++) {
        int from = first + k * 64 * TEAMS + 16 * tile + row;
        bool inside = from < end;
        size_t at_row = inside ? from : 0;
        copy16(to + tile * PIECES + place, left.from + at_row * left.stride + column, inside);
        copy16(to + (4 + tile) * PIECES + place, right.from + at_row * right.stride + column, inside);
      }
    };
    // A warp has 32 x 64 numbers; those 16 rows come first over which it also sums.
    const int left_at = left_row + (4 * slice + 2 * side + matrix % 2 ^ last);
    const int right_at = right_row + (8 * side + matrix / 2 ^ last);
    walk(stages, team, (end - first + 64 * TEAMS - 1) / (64 * TEAMS), fetch, [&](const uint4* from) {
#pragma unroll
      for (int tile = 0; tile < 4; tile++) {
        word a[2][4];
        load_transposed(a[0], from + tile * PIECES + left_at);
        load_transposed(a[1], from + tile * PIECES + (left_at ^ 2));
        mma(over_rows, a[0][0], a[0][1], a[0][2], a[0][3], 0x3f803f80u, 0x3f803f80u);
        add_tile(sum, a, from + (4 + tile) * PIECES, right_at);
      }
    });
    out[0] = 32 * slice + 16 * side, out[1] = out[0] ^ 16, in[0] = in[1] = 64 * side;
  }

  // Each team finishes a half, with what the other one has of it.
  float* mailbox = (float*)shared + thread;
  auto send = [&](const float(&half)[8][4], int number) {
#pragma unroll
    for (int k = 0; k < 32; k++) mailbox[(32 * number + k) * TEAM] = half[k / 4][k % 4];
  };
  auto put = [&](const float(&half)[8][4], int number) {
    float* to = parts + (size_t)blockIdx.x * SLAB + (out[number] + at.g) * WIDTH + in[number] + 2 * at.t;
#pragma unroll
    for (int q = 0; q < 8; q++)
#pragma unroll
      for (int r = 0; r < 2; r++)
        *(float2*)(to + 8 * r * WIDTH + 8 * q) = make_float2(half[q][2 * r], half[q][2 * r + 1]);
  };
  auto receive = [&](float(&half)[8][4], int number) {
#pragma unroll
    for (int k = 0; k < 32; k++) half[k / 4][k % 4] += mailbox[(32 * number + k) * TEAM];
    put(half, number);
  };
  float* over = parts + (size_t)blockIdx.x * SLAB + WIDTH * WIDTH + out[0] + at.g;
  if (TEAMS == 1) {
    put(sum[0], 0), put(sum[1], 1);
    if (at.t == 0) over[0] = over_rows[0], over[8] = over_rows[2];
    return;
  }
  __syncthreads();  // nobody reads a stage any more
  if (team)
    send(sum[0], 0), mailbox[64 * TEAM] = over_rows[0], mailbox[65 * TEAM] = over_rows[2];
  else
    send(sum[1], 1);
  __syncthreads();
  if (team) {
    receive(sum[1], 1);
  } else {
    receive(sum[0], 0);
    if (at.t == 0) over[0] = over_rows[0] + mailbox[64 * TEAM], over[8] = over_rows[2] + mailbox[65 * TEAM];
  }
}
#endif

// The sums of all parts, and of the norms' parts, in the order of the parameters. 8 warps have 128 numbers: each adds up
// every eighth part, one at last adds up theirs. What enters the gates is y gamma + beta where y was kept, `norm` has
// gamma and beta: the product with it follows from that with y and the sum over rows.
#ifdef NODE_TOTALS_WARPS
extern "C" __global__ void __launch_bounds__(NODE_TOTALS_WARPS * 32, 6 * 8 / NODE_TOTALS_WARPS)
node_totals(const float* parts, const float* of_norms, const float* norm, float* totals, int matrices, int chunks,
            int by_heads, int norms) {
  __shared__ float4 sums[NODE_TOTALS_WARPS][32];
  __shared__ float over_rows[NODE_TOTALS_WARPS];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, number = blockIdx.x * (NODE_TOTALS_WARPS / 8) + warp / 8;
  int matrix = (number - 4) / (WIDTH + 1), row = (number - 4) % (WIDTH + 1);
  bool is_sum = row == WIDTH;
  const float* from = parts + row * WIDTH;
  int count = chunks, stride = matrices * SLAB, to = matrix * WIDTH + row;  // in rows of 128
  int vectors = (matrices + 1) * WIDTH;                                     // where they begin
  if (number < 4)
    from = of_norms + number * WIDTH, count = norms, stride = 4 * WIDTH, to = vectors + number;
  else if (matrix > matrices)
    count = 0;
  else if (matrix == EDGE_VALUE)
    count = is_sum ? 0 : by_heads, stride = SLAB;
  else {
    from += (size_t)(by_heads + matrix - 1) * SLAB;
    if (!is_sum) {
      if (matrix >= FFN_OUTPUT && matrix < MAPS) to = FFN_OUTPUT * WIDTH + 2 * row + matrix - FFN_OUTPUT;
    } else if (matrix == FFN_OUTPUT)
      to = vectors + 4;
    else if (matrix >= GATE && matrix < FFN_OUTPUT)
      to = vectors + 5 + matrix - GATE;
    else if (matrix > MAPS)  // the source has no bias
      to = vectors + 8 + matrix - MAPS;
    else
      count = 0;
  }

  bool is_normed = number >= 4 && matrix >= GATE && matrix < FFN_OUTPUT && !is_sum;
  const float* beside = from + WIDTH * WIDTH - row * (WIDTH - 1);  // the sum over rows of the same unit
  float4 sum = make_float4(0, 0, 0, 0);
  float unit = 0;
#pragma unroll 8
  for (int part = warp % 8; part < count; part += 8) {
    float4 v = *(const float4*)(from + (size_t)part * stride + 4 * lane);
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    if (is_normed) unit += beside[(size_t)part * stride];
  }
  sums[warp][lane] = sum, over_rows[warp] = unit;
  __syncthreads();
  if (warp % 8 || count == 0) return;
#pragma unroll
  for (int other = 1; other < 8; other++) {
    float4 v = sums[warp + other][lane];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w, unit += over_rows[warp + other];
  }
  if (is_normed) {
    float4 gamma = ((const float4*)norm)[lane], beta = ((const float4*)norm)[WIDTH / 4 + lane];
    sum.x = fmaf(sum.x, gamma.x, unit * beta.x), sum.y = fmaf(sum.y, gamma.y, unit * beta.y);
    sum.z = fmaf(sum.z, gamma.z, unit * beta.z), sum.w = fmaf(sum.w, gamma.w, unit * beta.w);
  }
  *(float4*)(totals + (size_t)to * WIDTH + 4 * lane) = sum;
}
#endif
