// Eqs. edge_proposal and edge_update backward on Hopper, all gradients at once: what update_backward (edge_update.cu) and
// update_sums (edge_sums.cu) compute, but the gradient du of the proposals stays on the multiprocessor.
//
// A block takes 128 pairs at a time, a stage: some sources, each with the same few neighboring targets. Two groups of
// four warps compute what belongs to pairs, 64 a group, and leave du beside e in shared memory. A third group multiplies
// du^T (128 features by pairs) with e and with columns that say which target and which source a pair has: that is dW, dt
// and ds. The stages go along the sources of an item, a part of the sources of an instance, for one band of its targets
// after the other; so dt is complete at a band's last stage, and ds at the last band. What was added up of it before lies
// in a scratch in memory, which each thread reads as it wrote it.
//
// The weights are there once, halved as in edge_update.cu, for both products; so du is 2 du throughout.
constexpr int ROWS = 128;        // of a stage
constexpr int PITCH = ROWS + 2;  // of 16 bytes, from a piece of the rows to the next; four of 2 rows in different banks
constexpr int PIECES = 16 * PITCH;
constexpr int COLUMNS = 32;  // targets and sources of a stage
constexpr int STATES = PIECES + COLUMNS / 8 * PITCH;
constexpr int GROUP = 128;  // threads
constexpr int RING = 8;     // stages that are known at a time

struct Plan {  // of all blocks
  int m, n, items, parts, chunk;     // items are parts of `chunk` sources of an instance
  int bands, width, height;          // targets of a band, sources of a stage
};
// A stage's rows, each with a target of a source: in shared memory.
struct Rows {
  word bytes[8][2][8];          // from the stage's first pair; of a warp's even rows, of its odd rows
  unsigned short of_narrow[8];  // which of a warp's rows have one of the targets of a narrow band, a bit each
  unsigned char sources[ROWS], targets[ROWS];
  __device__ void set(const Plan& plan) {
    for (int row = threadIdx.x; row < ROWS; row += blockDim.x) {
      int source = row / plan.width, target = row - source * plan.width;
      sources[row] = source, targets[row] = target;
      bytes[row / 16][row % 2][row % 16 / 2] = (source * plan.n + target) * 2 * WIDTH;
      word bits = votes(target < plan.n - (plan.bands - 1) * plan.width);
      if (row % 32 == 0) of_narrow[row / 16] = bits, of_narrow[row / 16 + 1] = bits >> 16;
    }
  }
};
struct Stage {
  int item, band, done;       // of the item's sources
  int source, target, pair;   // of the first row, among those of all instances
  int rows;                   // with a source; none after the last stage
  bool is_last;               // of the band
  unsigned short inside[8];   // which of a warp's rows are there, a bit each
  __device__ void open(const Plan& plan, const Rows& all) {
    rows = 0;
    if (item >= plan.items) return;
    int instance = item / plan.parts, first = (item - instance * plan.parts) * plan.chunk + done;
    int left = min(plan.chunk - done, plan.m - first);
    source = instance * plan.m + first;
    target = instance * plan.n + band * plan.width;
    pair = source * plan.n + band * plan.width;
    rows = min(plan.height, left) * plan.width;
    is_last = left <= plan.height;
    bool is_narrow = plan.n - band * plan.width < plan.width;
    for (int warp = 0; warp < 8; warp++)
      inside[warp] = (1u << min(max(rows - 16 * warp, 0), 16)) - 1 & (is_narrow ? all.of_narrow[warp] : ~0u);
  }
  __device__ void follow(const Stage& before, const Plan& plan, const Rows& all) {
    item = before.item, band = before.band, done = before.done + plan.height;
    if (before.is_last) {
      done = 0;
      if (++band == plan.bands) band = 0, item += gridDim.x;
    }
    open(plan, all);
  }
};

__device__ __forceinline__ int place_of(int row, int piece) { return piece * PITCH + row; }
// For products over rows, of features with features.
__device__ __forceinline__ Operand features_in(const uint4* rows) { return operand(rows, 128, 16 * PITCH); }
// The 16 rows of a warp on their way, zeros for those that are not there: whole lines of memory at a time.
__device__ __forceinline__ void fetch(uint4* to, const uint4* from, const Stage& stage, const Rows& rows, int warp, int lane) {
  const char* first = (const char*)(from + (size_t)stage.pair * 16 + lane / 2);
  word inside = stage.inside[warp] >> lane % 2, bytes[8];
  to += place_of(16 * warp + lane % 2, lane / 2);
#pragma unroll
  for (int k = 0; k < 8; k++) bytes[k] = rows.bytes[warp][lane % 2][k];
#pragma unroll
  for (int k = 0; k < 8; k++) copy16(to + 2 * k, first + bytes[k], inside >> 2 * k & 1);
  commit_copies();
}
// Columns beside the rows: which target, then which source.
__device__ void fill_columns(uint4* columns, const Plan& plan) {
  for (int k = threadIdx.x; k < ROWS * COLUMNS / 8; k += blockDim.x) {
    int row = k % ROWS, source = row / plan.width, target = row % plan.width;
    word w[4];
    for (int p = 0; p < 4; p++) {
      int column = k / ROWS * 8 + 2 * p;
      auto one = [&](int column) {
        return source < plan.height && (column == target || column == plan.width + source) ? 1.0f : 0.0f;
      };
      w[p] = pack(one(column), one(column + 1));
    }
    columns[place_of(row, k / ROWS)] = make_uint4(w[0], w[1], w[2], w[3]);
  }
}
// Sums over the 16 rows from `rows` on, and over the 8 rows of `half`: lane (g, t) has features 16 column + g + (0, 8) of
// column 2 t and of column 2 t + 1.
__device__ __forceinline__ void add_columns(float (&total)[4], float (&other)[4], const uint4* rows, const uint4* half,
                                            const Factors& factors, int lane) {
  int matrix = lane / 8, row = lane % 8, both = place_of(row + matrix / 2 * 8, matrix % 2), four = place_in_tile(row, matrix);
#pragma unroll
  for (int c = 0; c < 4; c++) {
    word x[4], y[4], here[4];
    take4(here, factors.columns[c][lane]);
    load_transposed(y, half + further(four, c));
#pragma unroll
    for (int h = 0; h < 2; h++) {
      load_transposed(x, rows + both + place_of(0, 4 * c + 2 * h));
      mma(total, x[0], x[1], x[2], x[3], here[2 * h], here[2 * h + 1]);
      mma(other, y[2 * h], y[2 * h + 1], here[2 * h]);
    }
  }
}
// Sums over a stage's pairs, of features 16 warp + g + (0, 8) and of 64 more: with 128 features, 32 columns.
typedef float Sums[2][16 + COLUMNS / 8][4];
// use(column - from, feature, sum) for the columns from `from` on, less than `to`.
template <class Use>
__device__ __forceinline__ void visit(Sums& total, int warp, Lane at, int from, int to, Use use) {
#pragma unroll
  for (int k = 0; k < COLUMNS / 4; k++) {
    int column = k / 2 * 8 + 2 * at.t + k % 2 - from;
    if (0 <= column && column < to - from)
#pragma unroll
      for (int f = 0; f < 4; f++)
        use(column, 16 * warp + at.g + 8 * (f % 2) + 64 * (f / 2), total[f / 2][16 + k / 2][f % 2 * 2 + k % 2]);
  }
}
__device__ __forceinline__ void put_narrow(void* to, size_t at, float x) { ((unsigned short*)to)[at] = pack(x, 0.0f); }

#ifdef UPDATE_GRADIENTS_WARPS
extern "C" __global__ void __launch_bounds__(UPDATE_GRADIENTS_WARPS * 32, 1)
update_gradients(const uint4* e, const uint4* source, const uint4* target, const unsigned short* weight, const float* gamma,
                 const float* scales, const float* shifts, const uint4* grad, uint4* de, float* dw, void* ds, void* dt,
                 float* norms, float* scratch, int m, int n, int items, int parts, int chunk, int bands, int width,
                 int height) {
  alignas(128) extern __shared__ uint4 shared[];
  __shared__ Factors factors;
  alignas(16) __shared__ Rows rows;
  __shared__ Stage stages[RING];
  Plan plan{m, n, items, parts, chunk, bands, width, height};
  uint4 *states = shared + FRAGMENTS, *changes = states + 2 * STATES, *left = changes + PIECES, *products = left + PIECES;
  Lane at;
  int warp = from_lane((word)threadIdx.x / 32, 0), group = warp / 4;
  rows.set(plan);
  __syncthreads();
  if (threadIdx.x == 0) {
    stages[0].item = blockIdx.x, stages[0].band = stages[0].done = 0;
    stages[0].open(plan, rows);
    stages[1].follow(stages[0], plan, rows);
  }
  __syncthreads();
  if (group < 2 && stages[0].rows) {
    fetch(states, e, stages[0], rows, warp, at.lane);
    fetch(changes, grad, stages[0], rows, warp, at.lane);
  }
  fill_half(shared, weight);
  fill_columns(states + PIECES, plan);
  fill_columns(states + STATES + PIECES, plan);
  factors.set(gamma, at);
  publish();
  __syncthreads();

  // Barriers 1 and 2: a group's sums are complete, so du and the states are free. 3 and 4: its du is there.
  if (group < 2) {
    give_registers<152>();
    Matrix map = matrix_in(shared);
    Operand turned = operand(shared, 128, 16 * 128);
    word half = diagonal(at) & 0x3f003f00u;
    int first = 16 * warp + at.g, place = place_of(first, at.t);
    uint4* product = products + warp * 128;
    float dgamma[4] = {}, dbeta[4] = {};
    for (int number = 0; stages[number % RING].rows; number++) {
      const Stage &stage = stages[number % RING], &next = stages[(number + 1) % RING];
      const uint4* state = states + number % 2 * STATES + place;
      float acc[16][4], scale[2], shift[2];
      word x[2][16], slope[2][16], mean[2], along[2];
      {  // acc = (s_i + t_j) / 2
        word inside = stage.inside[warp] >> at.g;
        const uint4 *s[2], *t[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
          int row = inside >> 8 * r & 1 ? first + 8 * r : 0;
          int i = rows.sources[row], j = rows.targets[row], pair = stage.pair + i * n + j;
          scale[r] = scales[pair], shift[r] = shifts[pair];
          s[r] = source + piece(stage.source + i, at.t), t[r] = target + piece(stage.target + j, at.t);
        }
#pragma unroll
        for (int c = 0; c < 4; c++) {
          uint4 a = s[0][4 * c], b = t[0][4 * c], d = s[1][4 * c], f = t[1][4 * c];
          set_mma(acc[4 * c], add2(a.x, b.x), add2(d.x, f.x), half);
          set_mma(acc[4 * c + 1], add2(a.y, b.y), add2(d.y, f.y), half);
          set_mma(acc[4 * c + 2], add2(a.z, b.z), add2(d.z, f.z), half);
          set_mma(acc[4 * c + 3], add2(a.w, b.w), add2(d.w, f.w), half);
        }
      }
      wait_for_copies<1>();
      __syncwarp();
      take(x[0], state, 4 * PITCH);
      take(x[1], state + 8, 4 * PITCH);
      start(acc, x, map);
      wait_for_copies();
      __syncwarp();
      if (number) barrier(1 + group, 2 * GROUP);
      finish(acc, x);
      // In a block of its own, or the compiler takes its time to pack the slopes and has too few registers.
      bool any = stage.rows > 0;
      if (any) {
        float sum[2][4] = {}, along_y[2][4] = {};
        word scale2[2], shift2[2];
#pragma unroll
        for (int r = 0; r < 2; r++) scale2[r] = pack(scale[r], scale[r]), shift2[r] = pack(shift[r], shift[r]);
#pragma unroll
        for (int c = 0; c < 4; c++) {
          uint2 gain = factors.gain[8 * c + 2 * at.t + at.g % 2];
          word by[2][4];
#pragma unroll
          for (int r = 0; r < 2; r++) {
            word change[4], y[4];
            take4(change, changes[place + place_of(8 * r, 4 * c)]);
#pragma unroll
            for (int p = 0; p < 4; p++) {
              int q = 4 * c + p;
              float silu[2], s[2];
#pragma unroll
              for (int h = 0; h < 2; h++) {
                float u = acc[q][2 * r + h], t = tangent(u);
                silu[h] = fmaf(u, t, u);
                s[h] = fmaf(silu[h], fmaf(t, -scale[r], scale[r]), fmaf(t, scale[r], scale[r]));
              }
              slope[r][q] = pack(s[0], s[1]);
              y[p] = fma2(pack(silu[0], silu[1]), scale2[r], fma2(x[r][q], scale2[r], shift2[r]));
              by[r][p] = mul2(change[p], y[p]);
            }
            add_row(sum[r], change, gain);
            add_row(along_y[r], by[r], gain);
            left[place + place_of(8 * r, 4 * c)] = make_uint4(y[0], y[1], y[2], y[3]);  // where du will be
          }
          product[further(place_in_tile(at.g, at.t), c)] = make_uint4(
              add2(by[0][0], by[1][0]), add2(by[0][1], by[1][1]), add2(by[0][2], by[1][2]), add2(by[0][3], by[1][3]));
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
          float a = (sum[r][0] + sum[r][3]) * (-1.0f / WIDTH), b = (along_y[r][0] + along_y[r][3]) * (-1.0f / WIDTH);
          mean[r] = pack(a, a), along[r] = pack(b, b);
        }
      }
      __syncwarp();
      if (any) add_columns(dbeta, dgamma, changes + 16 * warp, product, factors, at.lane);
      if (next.rows) fetch(states + (number + 1) % 2 * STATES, e, next, rows, warp, at.lane);
      // acc = change gamma + mean + along y, divided by scale; slope, which has that scale twice, becomes 2 du.
#pragma unroll
      for (int c = 0; c < 4; c++) {
        word y[2][4], change[2][4], gains[2][4], rest[4];
#pragma unroll
        for (int r = 0; r < 2; r++) {
          take4(y[r], left[place + place_of(8 * r, 4 * c)]), take4(change[r], changes[place + place_of(8 * r, 4 * c)]);
          take4(gains[r], factors.gains[2 * c + r][at.lane]);
        }
        take4(rest, factors.rests[c][at.lane]);
#pragma unroll
        for (int p = 0; p < 4; p++) {
          int q = 4 * c + p;
          set_mma(acc[q], change[0][p], change[1][p], fma2(y[0][p], along[0], mean[0]),
                  fma2(y[1][p], along[1], mean[1]), gains[p / 2][p % 2 * 2], gains[p / 2][p % 2 * 2 + 1]);
          mma(acc[q], change[0][p], change[1][p], rest[p]);
#pragma unroll
          for (int r = 0; r < 2; r++) slope[r][q] = mul2(pack(acc[q][2 * r], acc[q][2 * r + 1]), slope[r][q]);
#pragma unroll
          for (int k = 0; k < 4; k++) acc[q][k] *= scale[k / 2];
        }
#pragma unroll
        for (int r = 0; r < 2; r++)
          left[place + place_of(8 * r, 4 * c)] =
              make_uint4(slope[r][4 * c], slope[r][4 * c + 1], slope[r][4 * c + 2], slope[r][4 * c + 3]);
      }
      publish();
      arrive(3 + group, 2 * GROUP);
      hold(acc);
      before_products();
#pragma unroll
      for (int k = 0; k < 8; k++)
        start_mma<true, true>(acc, slope[0][2 * k], slope[1][2 * k], slope[0][2 * k + 1], slope[1][2 * k + 1], turned + 16 * k);
      commit_products();
      __syncwarp();
      if (next.rows) fetch(changes, grad, next, rows, warp, at.lane);
      finish(acc, slope);
      word inside = stage.inside[warp] >> at.g;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        uint4* to = de + piece(stage.pair, at.t) + rows.bytes[warp][at.g % 2][at.g / 2 + 4 * r] / 16;
#pragma unroll
        for (int q = 0; q < 16; q++) slope[r][q] = pack(acc[q][2 * r], acc[q][2 * r + 1]);
        if (inside >> 8 * r & 1) put(to, slope[r]);
      }
    }
    float* sums = (float*)products;  // (2, 128) for each warp
#pragma unroll
    for (int k = 0; k < 4; k++) {
      int f = 16 * (2 * at.t + k % 2) + at.g + 8 * (k / 2);
      sums[warp * 512 + f] = dgamma[k], sums[warp * 512 + WIDTH + f] = dbeta[k];
    }
    barrier(5, 2 * GROUP);
    float sum = 0;
    for (int other = 0; other < 8; other++) sum += sums[other * 512 + threadIdx.x];
    norms[blockIdx.x * 2 * WIDTH + threadIdx.x] = sum;
    return;
  }

  take_registers<200>();
  Sums total = {};
  warp -= 8;
  for (int number = 0; stages[number % RING].rows; number++) {
    const Stage& stage = stages[number % RING];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      barrier(3 + h, 2 * GROUP);
      Operand outs = features_in(left + 64 * h), ins = features_in(states + number % 2 * STATES + 64 * h);
      before_products();
#pragma unroll
      for (int k = 0; k < 4; k++) {
        start_mma<true, true>(total[0], outs + 16 * k, ins + 16 * k);
        start_mma<true, true>(total[1], outs + 8 * PITCH + 16 * k, ins + 16 * k);
      }
      commit_products();
      const Stage& next = stages[(number + 1) % RING];
      if (h == 0 && threadIdx.x == 2 * GROUP) stages[(number + 2) % RING].follow(next, plan, rows);
      __syncwarp();
      wait_for_products();
      if (next.rows) arrive(1 + h, 2 * GROUP);
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int q = 0; q < 20; q++)
#pragma unroll
        for (int k = 0; k < 4; k++) hold(total[h][q][k]);
    bool is_first = stage.band == 0, is_complete = stage.band == bands - 1;
    float* before = scratch + ((size_t)blockIdx.x * chunk + stage.done) * WIDTH;
    visit(total, warp, at, width, COLUMNS, [&](int column, int f, float& sum) {
      if (column * width < stage.rows) {
        float all = is_first ? sum : sum + before[column * WIDTH + f];
        if (is_complete)
          put_narrow(ds, (size_t)(stage.source + column) * WIDTH + f, 0.5f * all);
        else
          before[column * WIDTH + f] = all;
      }
      sum = 0.0f;
    });
    if (stage.is_last) {
      size_t to = ((size_t)stage.item * n + stage.band * width) * WIDTH;
      visit(total, warp, at, 0, width, [&](int column, int f, float& sum) {
        if (column < n - stage.band * width) {
          if (parts == 1)
            put_narrow(dt, to + column * WIDTH + f, 0.5f * sum);
          else
            ((float*)dt)[to + column * WIDTH + f] = 0.5f * sum;
        }
        sum = 0.0f;
      });
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int q = 0; q < 16; q++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        int out = 64 * h + 16 * warp + 8 * r + at.g;
        float* to = dw + ((size_t)blockIdx.x * WIDTH + out) * WIDTH + 8 * q + 2 * at.t;
        *(float2*)to = make_float2(0.5f * total[h][q][2 * r], 0.5f * total[h][q][2 * r + 1]);
      }
}
#endif
