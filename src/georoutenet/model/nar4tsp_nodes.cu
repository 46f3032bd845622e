// What happens at NAR4TSP's nodes besides attention, see nar4tsp_nodes_cuda.py: the batch norm of y (rows, 128) and the
// maps of the normalized states, half of those for the ends of the edges and one for the next layer's attention.
//
// `norm` (4, 128) are the mean, 1 / deviation, and what y is multiplied with and added to.
enum Norm { MEAN, INVERSE, SCALE, OFFSET };

// As `fill`, all of it on its way at a time: it is there for all after `arrived`.
__device__ __forceinline__ void fetch(uint4* fragments, const unsigned short* weight) {
  for (int k = threadIdx.x; k < FRAGMENTS; k += blockDim.x) {
    int lane = k % 32, c = k / 32 % 4, q = k / 128;
    copy16(fragments + k, weight + feature(q, lane / 4) * WIDTH + 32 * c + 8 * (lane % 4));
  }
}
__device__ __forceinline__ void arrived() {
  commit_copies();
  wait_for_copies();
  __syncthreads();
}

#ifdef NAR4TSP_NODE_NORM_WARPS
constexpr float EPSILON = 1e-5f;
// From parts (batch, 2, 128), each instance's mean of `size` numbers and their squared distances from it: norm.
// 4 blocks; shared memory: 128 bytes a warp.
extern "C" __global__ void __launch_bounds__(NAR4TSP_NODE_NORM_WARPS * 32, 1)
nar4tsp_node_norm(const float* parts, const float* gamma, const float* beta, float* norm, int batch, int size) {
  extern __shared__ uint4 shared[];
  int feature = 32 * blockIdx.x + threadIdx.x % 32;
  parts += feature;
  float mean = over_lines((float*)shared, batch, [&](int k) { return parts[k * 2 * WIDTH]; }) / batch;
  float squares = over_lines((float*)shared, batch, [&](int k) {
    float away = parts[k * 2 * WIDTH] - mean;
    return parts[(k * 2 + 1) * WIDTH] + size * away * away;
  });
  if (threadIdx.x >= 32) return;
  float inverse = 1.0f / sqrtf(squares / ((float)batch * size) + EPSILON), scale = gamma[feature] * inverse;
  norm += feature;
  norm[MEAN * WIDTH] = mean, norm[INVERSE * WIDTH] = inverse;
  norm[SCALE * WIDTH] = scale, norm[OFFSET * WIDTH] = beta[feature] - mean * scale;
}
#endif

#ifdef NAR4TSP_NODE_MAPS_WARPS
// The normalized state (rows, 128), and its maps by weights (maps, 128, 128): half of source's, half of target's with the
// bias, and if maps = 3 node's.
// A block has one map and a part of the rows. Shared memory: a matrix, and three vectors.
extern "C" __global__ void __launch_bounds__(NAR4TSP_NODE_MAPS_WARPS * 32, 1)
nar4tsp_node_maps(const uint4* y, const float* norm, const unsigned short* weights, const float* bias, uint4* state,
                  uint4* source, uint4* target, uint4* node, int rows, int maps) {
  extern __shared__ uint4 shared[];
  Lane at;
  int map = blockIdx.x % maps, part = blockIdx.x / maps, parts = gridDim.x / maps, warp = threadIdx.x / 32;
  float* vectors = (float*)(shared + FRAGMENTS);  // scale, offset, bias
  for (int k = threadIdx.x; k < 3 * WIDTH; k += NAR4TSP_NODE_MAPS_WARPS * 32)
    vectors[k] = k < 2 * WIDTH ? norm[SCALE * WIDTH + k] : map == 1 ? bias[k - 2 * WIDTH] : 0.0f;
  fetch(shared, weights + map * WIDTH * WIDTH);
  arrived();
  Matrix matrix = matrix_in(shared);
  uint4* out = map == 0 ? source : map == 1 ? target : node;
  float factor = map < 2 ? 0.5f : 1.0f;
  int tiles = (rows + 15) / 16;
  for (int tile = part + parts * warp; tile < tiles; tile += parts * NAR4TSP_NODE_MAPS_WARPS) {
    word x[2][16];
    float acc[16][4];
#pragma unroll
    for (int r = 0; r < 2; r++) take(x[r], y + piece(min(16 * tile + at.g + 8 * r, rows - 1), at.t), 4);
#pragma unroll
    for (int q = 0; q < 16; q++) {
      const float* of = vectors + 32 * (q / 4) + 8 * at.t + 2 * (q % 4);
      float2 scale = *(const float2*)of, offset = *(const float2*)(of + WIDTH);
#pragma unroll
      for (int r = 0; r < 2; r++)
        x[r][q] = pack(low(x[r][q]) * scale.x + offset.x, high(x[r][q]) * scale.y + offset.y);
    }
    clear(acc);
    multiply(acc, x, matrix);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = 16 * tile + at.g + 8 * r;
      if (row >= rows) continue;
      if (map == 0) put(state + piece(row, at.t), x[r]);
#pragma unroll
      for (int q = 0; q < 16; q++) {
        float2 b = *(const float2*)(vectors + 2 * WIDTH + 32 * (q / 4) + 8 * at.t + 2 * (q % 4));
        x[r][q] = pack(factor * (acc[q][2 * r] + b.x), factor * (acc[q][2 * r + 1] + b.y));
      }
      put(out + piece(row, at.t), x[r]);
    }
  }
}
#endif

#ifdef NAR4TSP_NODE_MAPS_BACKWARD_WARPS
constexpr int LINE = WIDTH / 8 + 1;  // of a row of the warp's tile, in 16 bytes: one more than there are
// From `grad`, what comes to the state besides its maps, the gradients of the maps (rows, 128), and their weights from the
// other side, turned (maps, 128 in, 128 out): of_state (rows, 128), and by block parts (blocks, 3, 128), the sums over rows
// of it, of it times the normalized y, and of of_target.
// Shared memory: `maps` matrices, and 16 LINE of 16 bytes a warp.
extern "C" __global__ void __launch_bounds__(NAR4TSP_NODE_MAPS_BACKWARD_WARPS * 32, 1)
nar4tsp_node_maps_backward(const uint4* grad, const uint4* of_source, const uint4* of_target, const uint4* of_node,
                           const uint4* y, const float* norm, const unsigned short* turned, uint4* of_state,
                           float* parts, int rows, int maps) {
  extern __shared__ uint4 shared[];
  Lane at;
  int warp = threadIdx.x / 32;
  for (int map = 0; map < maps; map++) fetch(shared + map * FRAGMENTS, turned + map * WIDTH * WIDTH);
  arrived();
  uint4* lines = shared + maps * FRAGMENTS + warp * 16 * LINE;
  // Of sums over rows a thread has features 4 lane to 4 lane + 3.
  float sums[3][4] = {};
  const float4* own = (const float4*)norm + at.lane;
  float4 mean = own[MEAN * WIDTH / 4], inverse = own[INVERSE * WIDTH / 4];
  int tiles = (rows + 15) / 16;
  for (int tile = blockIdx.x + gridDim.x * warp; tile < tiles; tile += gridDim.x * NAR4TSP_NODE_MAPS_BACKWARD_WARPS) {
    word x[2][16];
    float acc[16][4];
    auto add = [&](const uint4* of_map, int number) {
#pragma unroll
      for (int r = 0; r < 2; r++) take(x[r], of_map + piece(min(16 * tile + at.g + 8 * r, rows - 1), at.t), 4);
      multiply(acc, x, matrix_in(shared + number * FRAGMENTS));
    };
    clear(acc);
    add(of_source, 0);
    add(of_target, 1);
#pragma unroll
    for (int q = 0; q < 16; q++)
#pragma unroll
      for (int k = 0; k < 4; k++) acc[q][k] *= 0.5f;
    if (maps > 2) add(of_node, 2);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = 16 * tile + at.g + 8 * r;
      take(x[r], grad + piece(min(row, rows - 1), at.t), 4);
#pragma unroll
      for (int q = 0; q < 16; q++)
        x[r][q] = pack(low(x[r][q]) + acc[q][2 * r], high(x[r][q]) + acc[q][2 * r + 1]);
      put(lines + (at.g + 8 * r) * LINE + at.t, x[r]);
      if (row < rows) put(of_state + piece(row, at.t), x[r]);
    }
    __syncwarp();
    int count = min(16, rows - 16 * tile);
    const uint2 *here = (const uint2*)lines + at.lane, *level = (const uint2*)y + (size_t)16 * tile * 32 + at.lane;
    const uint2* ends = (const uint2*)of_target + (size_t)16 * tile * 32 + at.lane;
#pragma unroll 4
    for (int k = 0; k < count; k++) {
      uint2 d = here[k * 2 * LINE], v = level[k * 32], t = ends[k * 32];
      float change[4] = {low(d.x), high(d.x), low(d.y), high(d.y)};
      sums[0][0] += change[0], sums[0][1] += change[1], sums[0][2] += change[2], sums[0][3] += change[3];
      sums[1][0] += change[0] * ((low(v.x) - mean.x) * inverse.x);
      sums[1][1] += change[1] * ((high(v.x) - mean.y) * inverse.y);
      sums[1][2] += change[2] * ((low(v.y) - mean.z) * inverse.z);
      sums[1][3] += change[3] * ((high(v.y) - mean.w) * inverse.w);
      sums[2][0] += low(t.x), sums[2][1] += high(t.x), sums[2][2] += low(t.y), sums[2][3] += high(t.y);
    }
    __syncwarp();
  }
  float4* all = (float4*)(shared + maps * FRAGMENTS);  // (warps, 3, 32), where the warps' tiles were
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 3; k++)
    all[(warp * 3 + k) * 32 + at.lane] = make_float4(sums[k][0], sums[k][1], sums[k][2], sums[k][3]);
  __syncthreads();
  for (int k = threadIdx.x; k < 3 * WIDTH; k += NAR4TSP_NODE_MAPS_BACKWARD_WARPS * 32) {
    float sum = 0;
    for (int w = 0; w < NAR4TSP_NODE_MAPS_BACKWARD_WARPS; w++) sum += ((const float*)all)[w * 3 * WIDTH + k];
    parts[(size_t)blockIdx.x * 3 * WIDTH + k] = sum;
  }
}
#endif

#ifdef NAR4TSP_NODE_NORM_BACKWARD_WARPS
// From the parts (count, 3, 128) of nar4tsp_node_maps_backward: gradients (3, 128) of gamma, beta and bias, and factors
// (3, 128), so that factors[0] of_state + factors[1] y + factors[2] is the gradient of y. 4 blocks; shared memory: 128
// bytes a warp.
extern "C" __global__ void __launch_bounds__(NAR4TSP_NODE_NORM_BACKWARD_WARPS * 32, 1)
nar4tsp_node_norm_backward(const float* parts, const float* norm, float* gradients, float* factors, int count, int rows) {
  extern __shared__ uint4 shared[];
  int feature = 32 * blockIdx.x + threadIdx.x % 32;
  float sums[3];
#pragma unroll
  for (int number = 0; number < 3; number++)
    sums[number] = over_lines(
        (float*)shared, count, [&](int k) { return parts[((size_t)k * 3 + number) * WIDTH + feature]; });
  if (threadIdx.x >= 32) return;
  float mean = norm[MEAN * WIDTH + feature], inverse = norm[INVERSE * WIDTH + feature];
  float scale = norm[SCALE * WIDTH + feature], slope = -scale * inverse * sums[1] / rows;
  gradients[feature] = sums[1], gradients[WIDTH + feature] = sums[0], gradients[2 * WIDTH + feature] = 0.5f * sums[2];
  factors[feature] = scale, factors[WIDTH + feature] = slope;
  factors[2 * WIDTH + feature] = -scale * sums[0] / rows - slope * mean;
}
#endif

#ifdef NAR4TSP_NODE_PRODUCTS_WARPS
constexpr int PIECES = 16 * WIDTH / 8;  // of 16 bytes in a tile
constexpr int STAGE = 8 * PIECES;       // 64 rows of a gradient, and 64 of the state
constexpr int STAGES = 3;
// By map and chunk of the rows, parts (maps, chunks, 128, 128) of the gradients of source, target and node: the products of
// the maps' gradients with the state. 8 warps, each of which has 32 x 64 numbers; shared memory: three stages.
extern "C" __global__ void __launch_bounds__(NAR4TSP_NODE_PRODUCTS_WARPS * 32, 2)
nar4tsp_node_products(const uint4* of_source, const uint4* of_target, const uint4* of_node, const uint4* state,
                      float* parts, int rows, int chunks, int chunk) {
  extern __shared__ uint4 shared[];
  Lane at;
  int map = blockIdx.x / chunks, first = blockIdx.x % chunks * chunk, end = min(first + chunk, rows);
  const uint4* of_map = map == 0 ? of_source : map == 1 ? of_target : of_node;
  int warp = threadIdx.x / 32, slice = warp % 4, side = warp / 4;
  // Thread 16 row + p copies piece p of a row of each tile, to where eight rows' same pieces lie in different banks.
  int row = threadIdx.x / 16, column = threadIdx.x % 16, place = threadIdx.x ^ row % 8;
  auto fetch = [&](int k) {
    uint4* to = shared + k % STAGES * STAGE + place;
#pragma unroll
    for (int tile = 0; tile < 4; tile++) {
      int from = first + 64 * k + 16 * tile + row;
      bool inside = from < end;
      size_t at_row = (size_t)(inside ? from : 0) * 16 + column;
      copy16(to + tile * PIECES, of_map + at_row, inside);
      copy16(to + (4 + tile) * PIECES, state + at_row, inside);
    }
  };
  // Lanes' rows: of the left operand, matrices (rows 0-7, features 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15); of the
  // right one, with the middle two exchanged. So come mma's operands in order: a tile's left, and two tiles' right.
  int matrix = at.lane / 8, last = at.lane % 8;
  int left_at = (last + matrix / 2 * 8) * 16 + (4 * slice + matrix % 2 ^ last);
  int right_at = (last + matrix % 2 * 8) * 16 + (8 * side + matrix / 2 ^ last);
  float sum[2][8][4] = {};
  int count = (end - first + 63) / 64;
#pragma unroll
  for (int k = 0; k < STAGES - 1; k++) {
    if (k < count) fetch(k);
    commit_copies();
  }
  for (int k = 0; k < count; k++) {
    wait_for_copies<STAGES - 2>();
    __syncthreads();  // every thread's copies are there, and nobody reads the stage before any more
    if (k + STAGES - 1 < count) fetch(k + STAGES - 1);
    commit_copies();
    const uint4* from = shared + k % STAGES * STAGE;
#pragma unroll
    for (int tile = 0; tile < 4; tile++) {
      word a[2][4];
      load_transposed(a[0], from + tile * PIECES + left_at);
      load_transposed(a[1], from + tile * PIECES + (left_at ^ 2));
      add_tile(sum, a, from + (4 + tile) * PIECES, right_at);
    }
  }
  float factor = map < 2 ? 0.5f : 1.0f;
  float* to = parts + (size_t)blockIdx.x * WIDTH * WIDTH + (32 * slice + at.g) * WIDTH + 64 * side + 2 * at.t;
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int q = 0; q < 8; q++)
#pragma unroll
      for (int r = 0; r < 2; r++)
        *(float2*)(to + (16 * h + 8 * r) * WIDTH + 8 * q) =
            make_float2(factor * sum[h][q][2 * r], factor * sum[h][q][2 * r + 1]);
}
#endif
