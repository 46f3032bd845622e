// NAR4TSP's attention of all cities of an instance to those within reach, see nar4tsp_attention_cuda.py.
//
// A block has four of the eight heads of one instance, which has at most 64 cities; a warp has a head and every other 16
// of the rows. Scores, weights and their gradients lie in mma's result: lane 4 g + t has, of rows g and g + 8, columns
// 8 k + 2 t and the next one, k = 0 ... 7. What is a number for each pair comes and goes as whole blocks of memory, and is
// replaced in shared memory where it lies.
constexpr int CITIES = 64;  // at most
constexpr int HEADS = 4;  // of a block
constexpr int SIDE = 16;  // features of a head
constexpr int PITCH = 2 * HEADS + 1;  // of a row of the states in shared memory, in 16 bytes
constexpr int TABLE = CITIES * PITCH;
typedef unsigned short half_word;

__device__ __forceinline__ float over_warp(float x) {
#pragma unroll
  for (int mask = 16; mask; mask /= 2) x += shuffle(x, mask);
  return x;
}
__device__ __forceinline__ float over_columns(float x) {  // of lanes with the same t
  x += shuffle(x, 4);
  x += shuffle(x, 8);
  return x + shuffle(x, 16);
}
// The block's heads of an instance's states; rows beyond the last are zero.
__device__ __forceinline__ void take_states(uint4* table, const uint4* states, int instance, int half, int n) {
  transfer<2>(
      CITIES * 2 * HEADS,
      [&](int k) {
        int row = k / (2 * HEADS);
        const uint4* from = states + ((size_t)instance * n + min(row, n - 1)) * (WIDTH / 8);
        uint4 v = from[half * 2 * HEADS + k % (2 * HEADS)];
        return row < n ? v : make_uint4(0, 0, 0, 0);
      },
      [&](int k, uint4 v) { table[k / (2 * HEADS) * PITCH + k % (2 * HEADS)] = v; });
}

#ifdef NAR4TSP_ATTEND_WARPS
constexpr float FAR = -1e30f;  // finite: rows of padding have nothing near
constexpr float LOG2E = 1.4426950408889634f;
// From g (B, n, 128), of_ends (8, 2, 16), of_edge (B, 8, n, n) or, if is_first, slope (8) times distance (B, n, n),
// constant (8), reach (B, n): message (B, n, 128) and weights (B, 8, n, n), negative where the score is. If is_sum, h (B,
// n, 128) is added to the message, and parts (B, 2, 128) are the sums' means and squared distances from them by instance.
// 8 warps; shared memory: two tables, 8 n n + 128 bytes, and 4 (4 HEADS CITIES + 2 CITIES + 128) bytes.
extern "C" __global__ void __launch_bounds__(NAR4TSP_ATTEND_WARPS * 32, 3)
nar4tsp_attend(const uint4* g, const float* of_ends, const uint2* of_edge, const float* slope, const float* constant,
               const float* distance, const float* reach, const uint4* h, uint4* message, uint2* weights, float* parts,
               int n, int is_first, int is_sum) {
  extern __shared__ uint4 shared[];
  Lane at;
  int instance = blockIdx.x / 2, half = blockIdx.x % 2, warp = threadIdx.x / 32;
  uint4 *table = shared, *messages = table + TABLE;
  float* ends = (float*)(messages + TABLE);            // (HEADS, 2, 16)
  float* of_city = ends + 2 * HEADS * SIDE;            // (2, HEADS, CITIES): as source, as target
  float* sums = of_city + 2 * HEADS * CITIES;          // of each warp, 4 SIDE numbers
  word* near = (word*)(sums + 2 * HEADS * CITIES);     // (CITIES, 2): a bit for each target
  uint2* pairs = (uint2*)(near + 2 * CITIES);
  half_word* pair = (half_word*)pairs;
  const uint2* from = of_edge + (size_t)blockIdx.x * n * n;
  if (!is_first) transfer<8>(n * n, [&](int k) { return from[k]; }, [&](int k, uint2 v) { pairs[k] = v; });
  take_states(table, g, instance, half, n);
  if (threadIdx.x < 2 * HEADS * SIDE) ends[threadIdx.x] = of_ends[half * 2 * HEADS * SIDE + threadIdx.x];
  const float* far = distance + (size_t)instance * n * n;
  for (int i = warp; i < CITIES; i += NAR4TSP_ATTEND_WARPS) {
    float limit = i < n ? reach[instance * n + i] : -1.0f;
#pragma unroll
    for (int k = 0; k < 2; k++) {
      int j = at.lane + 32 * k;
      word bits = votes(i < n && j < n && far[min(i, n - 1) * n + min(j, n - 1)] <= limit);
      if (at.lane == 0) near[2 * i + k] = bits;
    }
  }
  __syncthreads();
  for (int k = threadIdx.x; k < CITIES * HEADS; k += NAR4TSP_ATTEND_WARPS * 32) {
    int row = k / HEADS, head = k % HEADS;
    float sums[2] = {constant[half * HEADS + head], 0.0f};
#pragma unroll
    for (int p = 0; p < 2; p++) {
      word x[4];
      take4(x, table[row * PITCH + 2 * head + p]);
#pragma unroll
      for (int w = 0; w < 4; w++)
#pragma unroll
        for (int end = 0; end < 2; end++) {
          const float* share = ends + (2 * head + end) * SIDE + 8 * p + 2 * w;
          sums[end] += low(x[w]) * share[0] + high(x[w]) * share[1];
        }
    }
    of_city[head * CITIES + row] = sums[0];
    of_city[(HEADS + head) * CITIES + row] = sums[1];
  }
  __syncthreads();

  int head = warp % HEADS;
  const float *of_source = of_city + head * CITIES, *of_target = of_source + HEADS * CITIES;
  float by_distance = is_first ? slope[half * HEADS + head] : 0.0f;
  pair += head * n * n;
  int matrix = at.lane / 8;  // of the four that make two operands: rows 0-7 and 8-15, features 0-7, then 8-15
  const uint4* values = table + (matrix % 2 * 8 + at.lane % 8) * PITCH + 2 * head + matrix / 2;
  for (int first = 16 * (warp / HEADS); first < n; first += 16 * (NAR4TSP_ATTEND_WARPS / HEADS)) {
    float z[8][4];
    word negative = 0;
    float largest[2] = {FAR, FAR}, total[2] = {0, 0};
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int i = first + at.g + 8 * r;
      float source = of_source[i];
      word bits[2] = {near[2 * i] >> 2 * at.t, near[2 * i + 1] >> 2 * at.t};
      // Of pairs beyond the last city, whose bits are not set, anything is read.
      int row = min(i, n - 1) * n;
      if (is_first) {
#pragma unroll
        for (int k = 0; k < 16; k++)
          z[k / 2][2 * r + k % 2] = by_distance * far[row + min(k / 2 * 8 + 2 * at.t + k % 2, n - 1)];
      } else {
#pragma unroll
        for (int k = 0; k < 16; k++) z[k / 2][2 * r + k % 2] = low(pair[row + 2 * at.t + k / 2 * 8 + k % 2]);
      }
#pragma unroll
      for (int k = 0; k < 8; k++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
          float x = z[k][2 * r + c] + (source + of_target[8 * k + 2 * at.t + c]);
          negative |= x > 0.0f ? 0 : 1u << (16 * r + 2 * k + c);
          x = bits[k / 4] & 1u << (k % 4 * 8 + c) ? fmaxf(x, 0.2f * x) : FAR;
          largest[r] = fmaxf(largest[r], x);
          z[k][2 * r + c] = x;
        }
      largest[r] = fmaxf(largest[r], shuffle(largest[r], 1));
      largest[r] = fmaxf(largest[r], shuffle(largest[r], 2));
#pragma unroll
      for (int k = 0; k < 8; k++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
          float& x = z[k][2 * r + c];
          x = power2((x - largest[r]) * LOG2E);
          total[r] += x;
        }
      total[r] = 1.0f / over_row(total[r]);
    }
    word packed[2][8];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int i = first + at.g + 8 * r;
      half_word* row = pair + i * n + 2 * at.t;
#pragma unroll
      for (int k = 0; k < 8; k++) {
        packed[r][k] = pack(z[k][2 * r] * total[r], z[k][2 * r + 1] * total[r]);
        word sign = negative >> (16 * r + 2 * k);
        word w = packed[r][k] | (sign & 1) << 15 | (sign & 2) << 30;
        int j = 8 * k + 2 * at.t;
        if (i < n && j < n) row[8 * k] = w;
        if (i < n && j + 1 < n) row[8 * k + 1] = w >> 16;
      }
    }
    float mixed[2][4] = {};
#pragma unroll
    for (int k = 0; k < 4; k++) {
      word b[4];
      load_transposed(b, values + 16 * k * PITCH);
      const word *a = &packed[0][2 * k], *d = &packed[1][2 * k];
      mma(mixed[0], a[0], d[0], a[1], d[1], b[0], b[1]);
      mma(mixed[1], a[0], d[0], a[1], d[1], b[2], b[3]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int i = first + at.g + 8 * r;
      word* to = (word*)(messages + i * PITCH + 2 * head) + at.t;
      to[0] = pack(mixed[0][2 * r], mixed[0][2 * r + 1]), to[4] = pack(mixed[1][2 * r], mixed[1][2 * r + 1]);
    }
  }
  __syncthreads();
  uint2* to = weights + (size_t)blockIdx.x * n * n;
  for (int k = threadIdx.x; k < n * n; k += NAR4TSP_ATTEND_WARPS * 32) to[k] = pairs[k];

  // A thread has eight features of two rows.
  int piece = threadIdx.x % 8;
  uint4 x[2] = {};
#pragma unroll
  for (int k = 0; k < 2; k++) {
    int row = threadIdx.x / 8 + 32 * k;
    if (row >= n) continue;
    size_t place = ((size_t)instance * n + row) * (WIDTH / 8) + half * 2 * HEADS + piece;
    x[k] = messages[row * PITCH + piece];
    if (is_sum) {
      uint4 v = h[place];
      x[k] = make_uint4(add2(x[k].x, v.x), add2(x[k].y, v.y), add2(x[k].z, v.z), add2(x[k].w, v.w));
    }
    message[place] = x[k];
  }
  if (!is_sum) return;
  // The sums over all rows of the features, or of their squared distances from the mean.
  float mean[8] = {}, squares[8];
  auto over_rows = [&](float* all, float(&found)[8], bool is_square) {
#pragma unroll
    for (int f = 0; f < 8; f++) {
      float sum = 0;
#pragma unroll
      for (int k = 0; k < 2; k++) {
        word w = f / 2 == 0 ? x[k].x : f / 2 == 1 ? x[k].y : f / 2 == 2 ? x[k].z : x[k].w;
        float v = f % 2 ? high(w) : low(w), away = v - mean[f];
        if ((int)threadIdx.x / 8 + 32 * k < n) sum += is_square ? away * away : v;
      }
      sum += shuffle(sum, 8);
      sum += shuffle(sum, 16);
      if (at.lane < 8) all[warp * 64 + 8 * piece + f] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int f = 0; f < 8; f++) {
      found[f] = 0;
#pragma unroll
      for (int w = 0; w < NAR4TSP_ATTEND_WARPS; w++) found[f] += all[w * 64 + 8 * piece + f];
    }
  };
  over_rows(of_city, mean, false);  // of_city is not needed any more
#pragma unroll
  for (int f = 0; f < 8; f++) mean[f] /= n;
  over_rows(sums, squares, true);
  if (threadIdx.x < 8) {
    float* found = parts + (size_t)instance * 2 * WIDTH + 64 * half + 8 * piece;
#pragma unroll
    for (int f = 0; f < 8; f++) found[f] = mean[f], found[WIDTH + f] = squares[f];
  }
}
#endif

#ifdef NAR4TSP_ATTEND_BACKWARD_WARPS
constexpr int SENT = 24;  // numbers of a thread
// From grad (B, n, 128) and what nar4tsp_attend read and wrote: of_g (B, n, 128); unless is_first, of_pair (B, 8, n, n);
// and sums (B, 8, 34), the gradients of constant, slope (or nothing) and ends. If is_sum, grad is not yet that of the
// messages, but of_h (B, n, 128) is: factors[0] grad + factors[1] message + factors[2], with factors (3, 128).
// 8 warps; shared memory: two tables, 8 n n bytes, and 4 (8 SENT 32 + 2 HEADS CITIES + 8 + 128) bytes.
extern "C" __global__ void __launch_bounds__(NAR4TSP_ATTEND_BACKWARD_WARPS * 32, 2)
nar4tsp_attend_backward(const uint4* grad, const uint4* g, const float* of_ends, const uint2* weights,
                        const float* distance, const uint4* message, const float* factors, uint4* of_g, uint4* of_h,
                        uint2* of_pair, float* sums, int n, int is_first, int is_sum) {
  extern __shared__ uint4 shared[];
  Lane at;
  int instance = blockIdx.x / 2, half = blockIdx.x % 2;
  int warp = threadIdx.x / 32, head = warp % HEADS, group = warp / HEADS;
  uint4 *table = shared, *changes = table + TABLE;
  float* ends = (float*)(changes + TABLE);              // (HEADS, 2, 16)
  float* by_city = ends + 2 * HEADS * SIDE;             // (2, HEADS, CITIES): as source, as target
  float* slopes = by_city + 2 * HEADS * CITIES;         // of each warp
  float* mailbox = slopes + 8;
  uint2* pairs = (uint2*)(mailbox + 8 * SENT * 32);
  const uint2* from = weights + (size_t)blockIdx.x * n * n;
  transfer<8>(n * n, [&](int k) { return from[k]; }, [&](int k, uint2 v) { pairs[k] = v; });
  take_states(table, g, instance, half, n);
  if (is_sum) {
    int piece = threadIdx.x % 8;
    float factor[3][8];
#pragma unroll
    for (int k = 0; k < 3; k++)
#pragma unroll
      for (int f = 0; f < 8; f++) factor[k][f] = factors[k * WIDTH + 64 * half + 8 * piece + f];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      int row = threadIdx.x / 8 + 32 * k;
      size_t place = ((size_t)instance * n + min(row, n - 1)) * (WIDTH / 8) + half * 2 * HEADS + piece;
      word x[4], y[4];
      take4(x, grad[place]), take4(y, message[place]);
#pragma unroll
      for (int w = 0; w < 4; w++) {
        float lower = factor[0][2 * w] * low(x[w]) + factor[1][2 * w] * low(y[w]) + factor[2][2 * w];
        float upper = factor[0][2 * w + 1] * high(x[w]) + factor[1][2 * w + 1] * high(y[w]) + factor[2][2 * w + 1];
        x[w] = row < n ? pack(lower, upper) : 0;
      }
      uint4 v = make_uint4(x[0], x[1], x[2], x[3]);
      changes[row * PITCH + piece] = v;
      if (row < n) of_h[place] = v;
    }
  } else
    take_states(changes, grad, instance, half, n);
  if (threadIdx.x < 2 * HEADS * SIDE) ends[threadIdx.x] = of_ends[half * 2 * HEADS * SIDE + threadIdx.x];
  float *by_source = by_city + head * CITIES, *by_target = by_source + HEADS * CITIES;
  for (int k = threadIdx.x; k < 2 * HEADS * CITIES; k += NAR4TSP_ATTEND_BACKWARD_WARPS * 32) by_city[k] = 0;
  __syncthreads();

  half_word* pair = (half_word*)pairs + head * n * n;
  const float* far = distance + (size_t)instance * n * n;
  const word* targets = (const word*)table + 8 * head + at.t;
  const word* change = (const word*)changes + 8 * head + at.t;
  int matrix = at.lane / 8;  // rows 0-7, features 0-7 and 8-15; rows 8-15, the same
  const uint4* changed = changes + (matrix / 2 * 8 + at.lane % 8) * PITCH + 2 * head + matrix % 2;
  float of_value[8][4] = {}, of_target[8][2] = {}, of_slope = 0;  // of_value is transposed: features, targets
  for (int first = 16 * group; first < n; first += 32) {
    float dz[8][4];
    const word *upper = change + (first + at.g) * 4 * PITCH, *lower = upper + 8 * 4 * PITCH;
#pragma unroll
    for (int k = 0; k < 8; k++) {
      const word* target = targets + (8 * k + at.g) * 4 * PITCH;
      set_mma(dz[k], upper[0], lower[0], upper[4], lower[4], target[0], target[4]);
    }
    word signs[2][8];
    float level[2] = {0, 0}, total[2] = {0, 0};
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int i = first + at.g + 8 * r;
      half_word* row = pair + i * n + 2 * at.t;
#pragma unroll
      for (int k = 0; k < 8; k++) {
        int j = 8 * k + 2 * at.t;
        word w = 0;
        if (i < n && j < n) w = row[8 * k];
        if (i < n && j + 1 < n) w |= (word)row[8 * k + 1] << 16;
        signs[r][k] = w;
        w &= 0x7fff7fffu;
        level[r] += low(w) * dz[k][2 * r] + high(w) * dz[k][2 * r + 1];
      }
      level[r] = over_row(level[r]);
#pragma unroll
      for (int k = 0; k < 8; k++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
          float& x = dz[k][2 * r + c];
          float w = c ? high(signs[r][k]) : low(signs[r][k]);
          x = (x - level[r]) * (w > 0.0f ? w : -0.2f * w);
          total[r] += x;
          of_target[k][c] += x;
          int j = 8 * k + 2 * at.t + c;
          if (i < n && j < n && !is_first) row[8 * k + c] = pack(x, 0.0f);
        }
      if (is_first) {  // the gradient is zero beyond the last city
        const float* distances = far + min(i, n - 1) * n;
#pragma unroll
        for (int k = 0; k < 16; k++)
          of_slope += dz[k / 2][2 * r + k % 2] * distances[min(k / 2 * 8 + 2 * at.t + k % 2, n - 1)];
      }
      total[r] = over_row(total[r]);
      if (at.t == 0 && i < n) by_source[i] = total[r];
    }
    word a[4];
    load_transposed(a, changed + first * PITCH);
#pragma unroll
    for (int k = 0; k < 8; k++) {
      word b0 = transpose(signs[0][k] & 0x7fff7fffu), b1 = transpose(signs[1][k] & 0x7fff7fffu);
      mma(of_value[k], a[0], a[1], a[2], a[3], b0, b1);
    }
  }
  of_slope = over_warp(of_slope);
  if (at.lane == 0) slopes[warp] = of_slope;

  // Each warp of a head finishes half of the targets, with what the other one has of them.
  float* send = mailbox + warp * SENT * 32 + at.lane;
  const float* receive = mailbox + (warp ^ HEADS) * SENT * 32 + at.lane;
#pragma unroll
  for (int k = 0; k < 4; k++) {
#pragma unroll
    for (int c = 0; c < 4; c++) send[(6 * k + c) * 32] = group ? of_value[k][c] : of_value[k + 4][c];
#pragma unroll
    for (int c = 0; c < 2; c++) send[(6 * k + 4 + c) * 32] = group ? of_target[k][c] : of_target[k + 4][c];
  }
  __syncthreads();
  if (!is_first) {
    uint2* to = of_pair + (size_t)blockIdx.x * n * n;
    for (int k = threadIdx.x; k < n * n; k += NAR4TSP_ATTEND_BACKWARD_WARPS * 32) to[k] = pairs[k];
  }
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      float target = (group ? of_target[k + 4][c] : of_target[k][c]) + receive[(6 * k + 4 + c) * 32];
      target = over_columns(target);
      int j = 32 * group + 8 * k + 2 * at.t + c;
      float source = by_source[j];
      if (at.g == 0) by_target[j] = target;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        int feature = at.g + 8 * r;
        float x = (group ? of_value[k + 4][2 * r + c] : of_value[k][2 * r + c]) + receive[(6 * k + 2 * r + c) * 32];
        x += source * ends[2 * head * SIDE + feature] + target * ends[(2 * head + 1) * SIDE + feature];
        ((half_word*)(changes + j * PITCH))[head * SIDE + feature] = pack(x, 0.0f);
      }
    }
  __syncthreads();
  for (int k = threadIdx.x; k < n * 2 * HEADS; k += NAR4TSP_ATTEND_BACKWARD_WARPS * 32) {
    int row = k / (2 * HEADS), piece = k % (2 * HEADS);
    of_g[((size_t)instance * n + row) * (WIDTH / 8) + half * 2 * HEADS + piece] = changes[row * PITCH + piece];
  }
  // The first warp of a head has the sums over sources, the second one those over targets and all pairs.
  const float* by = group ? by_target : by_source;
  const half_word* feature = (const half_word*)table + head * SIDE + at.lane % SIDE;
  float sum = 0;
  for (int j = at.lane / SIDE; j < n; j += 2) sum += by[j] * low(feature[j * 8 * PITCH]);
  sum += shuffle(sum, SIDE);
  float* to = sums + (size_t)(blockIdx.x * HEADS + head) * (2 + 2 * SIDE);
  if (at.lane < SIDE) to[2 + group * SIDE + at.lane] = sum;
  if (group) {
    sum = over_warp(by[at.lane] + by[at.lane + 32]);
    if (at.lane == 0) to[0] = sum, to[1] = slopes[head] + slopes[head + HEADS];
  }
}
#endif
