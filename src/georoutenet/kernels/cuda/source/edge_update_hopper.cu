// Eqs. edge_proposal and edge_update backward on Hopper, all gradients at once: what update_backward (edge_update.cu) and
// then update_sums (edge_update_sums.cu) compute, but the gradient du of the proposal u = W e + s_i + t_j stays on the
// multiprocessor.
//
// A block takes 128 pairs at a time, a stage: some sources, each with the same few neighboring targets. Two groups of
// four warps compute what belongs to pairs, 64 a group, and leave du beside e in shared memory. A third group multiplies
// du^T (128 features by pairs) with e and with columns that say which target and which source a pair has: that is dW, dt
// and ds. The stages go along the sources of an item, a part of the sources of an instance, for one band of its targets
// after the other; so dt is complete at a band's last stage, and ds at the last band. What was added up of it before lies
// in a scratch in memory, which each thread reads as it wrote it: for each step along the sources the columns by eights.
//
// The weights are there once, for the product with e and, transposed, for the one with du. As in edge_update.cu they are
// halved; so du is twice what it shall be, and the columns have halves.
//
// A group's warps hardly ever have others to wait with, so what they need is there before: the third group finds the
// stages, prefetches their rows, and brings the rows of s and t, which products with the columns add to W e. Rows come to
// tiles of their warps, for a copy to the products' order writes as many lines of shared memory as it has pieces.
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
  __device__ void set(const Plan& plan) {
    for (int row = threadIdx.x; row < ROWS; row += blockDim.x) {
      int source = row / plan.width, target = row - source * plan.width;
      bytes[row / 16][row % 2][row % 16 / 2] = (source * plan.n + target) * 2 * WIDTH;
      word bits = votes(target < plan.n - (plan.bands - 1) * plan.width);
      if (row % 32 == 0) of_narrow[row / 16] = bits, of_narrow[row / 16 + 1] = bits >> 16;
    }
  }
};
struct Stage {
  int item, band, done;       // of the item's sources
  int instance, source, target, pair;  // of the first row, among those of all instances
  int sources, rows;          // rows with a source; none after the last stage
  bool is_last;               // of the band
  unsigned short inside[8];   // which of a warp's rows are there, a bit each
  __device__ void open(const Plan& plan, const Rows& all) {
    if (item >= plan.items) {
      rows = 0;
      for (unsigned short& bits : inside) bits = 0;
      return;
    }
    instance = item / plan.parts;
    int first = (item - instance * plan.parts) * plan.chunk + done;
    int left = min(plan.chunk - done, plan.m - first);
    source = instance * plan.m + first;
    target = instance * plan.n + band * plan.width;
    pair = source * plan.n + band * plan.width;
    sources = min(plan.height, left);
    rows = sources * plan.width;
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
// The 16 rows of a warp on their way to a tile of its own, zeros for those that are not there: whole lines of memory at a
// time. A row's pieces lie together in fours, so a copy has less lines to write.
__device__ __forceinline__ void fetch(uint4* to, const uint4* from, const Stage& stage, const Rows& rows, int warp, int lane) {
  const char* first = (const char*)(from + (size_t)stage.pair * 16 + lane / 2);
  word inside = stage.inside[warp] >> lane % 2, bytes[8];
  int place = place_in_tile(lane % 2, lane / 2);
#pragma unroll
  for (int k = 0; k < 8; k++) bytes[k] = rows.bytes[warp][lane % 2][k];
#pragma unroll
  for (int k = 0; k < 8; k++)  // row 2 k + lane % 2
    copy16(to + k / 4 * 128 + k % 4 * 8 + (place ^ k % 4), first + bytes[k], inside >> 2 * k & 1);
  commit_copies();
}
// Their scales and shifts, with the copies that follow; of rows that are not there, the first row's.
__device__ __forceinline__ void fetch_numbers(float (&to)[2][16], const float* scales, const float* shifts,
                                              const Stage& stage, const Rows& rows, int warp, int lane) {
  int row = lane % 16, there = stage.inside[warp] >> row & 1;
  int pair = stage.pair + (there ? rows.bytes[warp][row % 2][row / 2] / (2 * WIDTH) : 0);
  copy4(&to[lane / 16][row], (lane < 16 ? scales : shifts) + pair);
}
// What a stage will read, from memory as far as the cache. By 128 threads, a row each.
struct Ahead {
  const uint4* states[2];
  const float* numbers[2];
  __device__ __forceinline__ void read(const Stage& stage, const Rows& rows) const {
    int row = threadIdx.x % ROWS;
    if (!(stage.inside[row / 16] >> row % 16 & 1)) return;  // none after the last stage
    size_t pair = stage.pair + rows.bytes[row / 16][row % 2][row % 16 / 2] / (2 * WIDTH);
#pragma unroll
    for (const uint4* from : states) prefetch(from + pair * 16), prefetch(from + pair * 16 + 8);
#pragma unroll
    for (const float* from : numbers) prefetch(from + pair);
  }
};
// Columns beside the rows: a half says which target, then which source.
__device__ void fill_columns(uint4* columns, const Plan& plan) {
  for (int k = threadIdx.x; k < ROWS * COLUMNS / 8; k += blockDim.x) {
    int row = k % ROWS, source = row / plan.width, target = row % plan.width;
    word w[4];
    for (int p = 0; p < 4; p++) {
      int column = k / ROWS * 8 + 2 * p;
      auto of = [&](int column) {
        return source < plan.height && (column == target || column == plan.width + source) ? 0.5f : 0.0f;
      };
      w[p] = pack(of(column), of(column + 1));
    }
    columns[place_of(row, k / ROWS)] = make_uint4(w[0], w[1], w[2], w[3]);
  }
}
// The rows of t and of s that a stage has, on their way, for the product with the columns: as cores of 8 of them and 8
// features in the tiles' order. By 128 threads. Columns of nothing have some row, for its numbers are multiplied with zero.
// Two stages' ends are kept, so a band's targets come with its first two stages and stay.
constexpr int ENDS = COLUMNS * WIDTH / 8;
__device__ __forceinline__ void fetch_ends(uint4* ends, const uint4* source, const uint4* target, const Stage& stage,
                                           const Plan& plan) {
  int column = threadIdx.x % 128 / 4, t = threadIdx.x % 4, i = column - plan.width;
  int j = min(column, plan.n - stage.band * plan.width - 1);
  const uint4* from = i < 0 ? target + piece(stage.target + j, t) : source + piece(stage.source + min(i, stage.sources - 1), t);
  word* to = (word*)ends + column / 8 * 16 * 32 + column % 8 * 4 + t;
  if (i >= 0 || stage.done < 2 * plan.height)
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
      for (int p = 0; p < 4; p++) copy4(to + (4 * c + p) * 32, (const word*)(from + 4 * c) + p);
  commit_copies();
}
// Sums over the 16 rows of a tile, and over the 8 rows of `half`: lane (g, t) has features 16 column + g + (0, 8) of
// column 2 t and of column 2 t + 1.
__device__ __forceinline__ void add_columns(float (&total)[4], float (&other)[4], const uint4* rows, const uint4* half,
                                            const Factors& factors, int lane) {
  int matrix = lane / 8, row = lane % 8, both = place_in_tile(row, matrix % 2), four = place_in_tile(row, matrix);
#pragma unroll
  for (int c = 0; c < 4; c++) {
    word x[4], y[4], here[4];
    take4(here, factors.columns[c][lane]);
    load_transposed(y, half + further(four, c));
#pragma unroll
    for (int h = 0; h < 2; h++) {
      load_transposed(x, rows + matrix / 2 * 128 + further(both ^ 2 * h, c));
      mma(total, x[0], x[1], x[2], x[3], here[2 * h], here[2 * h + 1]);
      mma(other, y[2 * h], y[2 * h + 1], here[2 * h]);
    }
  }
}
// Sums over a stage's pairs, of features 16 warp + g + (0, 8) and of 64 more: with 128 features, 32 columns.
typedef float Sums[2][16 + COLUMNS / 8][4];
// The sum of column 8 j + 2 t + k and of feature 16 warp + g + 8 (f % 2) + 64 (f / 2).
__device__ __forceinline__ float& of_column(Sums& total, int j, int k, int f) {
  return total[f / 2][16 + j][f % 2 * 2 + k];
}
// use(column, feature, sum) for the columns less than `to`.
template <class Use>
__device__ __forceinline__ void visit(Sums& total, int warp, Lane at, int to, Use use) {
#pragma unroll
  for (int k = 0; k < COLUMNS / 4; k++) {
    int column = k / 2 * 8 + 2 * at.t + k % 2;
    if (column < to)
#pragma unroll
      for (int f = 0; f < 4; f++)
        use(column, 16 * warp + at.g + 8 * (f % 2) + 64 * (f / 2), of_column(total, k / 2, k % 2, f));
  }
}
__device__ __forceinline__ void put_bf16(void* to, size_t at, float x) { ((unsigned short*)to)[at] = pack(x, 0.0f); }

// Barriers 1 and 2: a group's sums are complete, so du and the states are free. 3 and 4: its du is there. 6 to 9: so are
// the ends of an even stage for either group, of an odd one.
struct BothEnds {
  uint4* shared;  // of two stages
  const uint4 *source, *target;
};
// The third group.
__device__ __forceinline__ void add_up(const uint4* left, const uint4* states, const BothEnds& ends, Stage* stages,
                                       const Rows& rows, const Plan& plan, const Ahead& ahead, float* dw, void* ds,
                                       void* dt, float* scratch, int warp, Lane at) {
  Sums total = {};
  int first = plan.width / 8, last = (plan.width + plan.height - 1) / 8;  // eights of columns of sources
  int eights = last - first + 1, steps = (plan.chunk + plan.height - 1) / plan.height, step = 0;
  float4* before = (float4*)scratch + (size_t)blockIdx.x * steps * eights * 2 * GROUP + threadIdx.x % GROUP;
  for (int number = 0; stages[number % RING].rows; number++) {
    const Stage &stage = stages[number % RING], &next = stages[(number + 1) % RING];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      barrier(3 + h, 2 * GROUP);
      Operand outs = features_in(left + 64 * h), ins = features_in(states + 64 * h);
      before_products();
#pragma unroll
      for (int k = 0; k < 4; k++) {
        start_mma<true, true>(total[0], outs + 16 * k, ins + 16 * k);
        start_mma<true, true>(total[1], outs + 8 * PITCH + 16 * k, ins + 16 * k);
      }
      commit_products();
      wait_for_products();
      if (next.rows) arrive(1 + h, 2 * GROUP);
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int q = 0; q < 20; q++)
#pragma unroll
        for (int k = 0; k < 4; k++) hold(total[h][q][k]);
    bool is_first = stage.band == 0, is_complete = stage.band == plan.bands - 1;
    float4* here = before + step * eights * 2 * GROUP;
    float4 old[2] = {};
    if (!is_first) old[0] = here[0], old[1] = here[GROUP];
    const Stage& after_next = stages[(number + 2) % RING];
    if (after_next.rows)
      fetch_ends(ends.shared + number % 2 * ENDS, ends.source, ends.target, after_next, plan);
    ahead.read(after_next, rows);
    if (threadIdx.x == 2 * GROUP) stages[(number + 3) % RING].follow(after_next, plan, rows);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
      if (j < first || j > last) continue;
      if (j > first && !is_first) old[0] = here[0], old[1] = here[GROUP];
#pragma unroll
      for (int k = 0; k < 2; k++) {
        float sum[4] = {old[k].x, old[k].y, old[k].z, old[k].w};
        int column = 8 * j + 2 * at.t + k - plan.width;
#pragma unroll
        for (int f = 0; f < 4; f++) sum[f] += of_column(total, j, k, f);
        if (!is_complete)
          here[k * GROUP] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        else if (0 <= column && column < stage.sources)
#pragma unroll
          for (int f = 0; f < 4; f++)
            put_bf16(ds, (size_t)(stage.source + column) * WIDTH + 16 * warp + at.g + 8 * (f % 2) + 64 * (f / 2),
                       sum[f]);
#pragma unroll
        for (int f = 0; f < 4; f++)
          if (column >= 0) of_column(total, j, k, f) = 0.0f;
      }
      here += 2 * GROUP;
    }
    step++;
    if (stage.is_last) {
      step = 0;
      size_t to = ((size_t)stage.item * plan.n + stage.band * plan.width) * WIDTH;
      visit(total, warp, at, plan.width, [&](int column, int f, float& sum) {
        if (column < plan.n - stage.band * plan.width) {
          if (plan.parts == 1)
            put_bf16(dt, to + column * WIDTH + f, sum);
          else
            ((float*)dt)[to + column * WIDTH + f] = sum;
        }
        sum = 0.0f;
      });
    }
    if (after_next.rows) {
      wait_for_copies();
      publish();
      arrive(6 + number % 2 * 2, 2 * GROUP), arrive(7 + number % 2 * 2, 2 * GROUP);
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
// Before the first stage, by all threads.
__device__ __forceinline__ void begin(Stage* stages, Rows& rows, const Plan& plan) {
  rows.set(plan);
  __syncthreads();
  if (threadIdx.x == 0) {
    stages[0].item = blockIdx.x, stages[0].band = stages[0].done = 0;
    stages[0].open(plan, rows);
    stages[1].follow(stages[0], plan, rows);
    stages[2].follow(stages[1], plan, rows);
  }
  __syncthreads();
}
// acc += x b, b as cores of a matrix for the product with its transpose.
__device__ __forceinline__ Operand transposed_in(const uint4* shared) { return operand(shared, 128, 16 * 128); }
__device__ __forceinline__ void start_transposed(float (&acc)[16][4], const word (&x)[2][16], Operand b) {
  hold(acc);
  before_products();
#pragma unroll
  for (int k = 0; k < 8; k++) start_mma<true, true>(acc, x[0][2 * k], x[1][2 * k], x[0][2 * k + 1], x[1][2 * k + 1], b + 16 * k);
  commit_products();
}

#ifdef UPDATE_GRADIENTS_WARPS
extern "C" __global__ void __launch_bounds__(UPDATE_GRADIENTS_WARPS * 32, 1)
update_gradients(const uint4* e, const uint4* source, const uint4* target, const unsigned short* weight, const float* gamma,
                 const float* scales, const float* shifts, const uint4* grad, uint4* de, float* dw, void* ds, void* dt,
                 float* norms, float* scratch, int m, int n, int items, int parts, int chunk, int bands, int width,
                 int height) {
  alignas(128) extern __shared__ uint4 shared[];
  __shared__ Factors factors;
  __shared__ float numbers[8][2][16];  // scales and shifts of a warp's rows
  alignas(16) __shared__ Rows rows;
  __shared__ Stage stages[RING];
  Plan plan{m, n, items, parts, chunk, bands, width, height};
  uint4 *states = shared + FRAGMENTS, *left = states + STATES, *inputs = left + PIECES, *changes = inputs + 8 * 256;
  uint4* products = changes + 8 * 256;
  BothEnds ends{products + 8 * 128, source, target};
  Lane at;
  int warp = from_lane((word)threadIdx.x / 32, 0), group = warp / 4;
  begin(stages, rows, plan);
  if (group < 2) {  // no block is without a stage
    fetch(inputs + warp * 256, e, stages[0], rows, warp, at.lane);
    fetch_numbers(numbers[warp], scales, shifts, stages[0], rows, warp, at.lane);
    fetch(changes + warp * 256, grad, stages[0], rows, warp, at.lane);
  } else {
    for (int k = 0; k < 2 && stages[k].rows; k++) fetch_ends(ends.shared + k * ENDS, source, target, stages[k], plan);
    wait_for_copies();
  }
  fill_half(shared, weight);
  fill_columns(states + PIECES, plan);
  factors.set(gamma, at);
  publish();
  __syncthreads();

  if (group < 2) {
    give_registers<152>();
    Matrix map = matrix_in(shared);
    Operand transposed = transposed_in(shared), ends_of_rows = operand(states + PIECES + 64 * group, 16 * PITCH, 128);
    Operand of_ends = operand(ends.shared, 16 * 128, 128);
    int place = place_of(16 * warp + at.g, at.t);
    uint4 *product = products + warp * 128, *tile = changes + warp * 256, *input = inputs + warp * 256;
    int in_tile = place_in_tile(at.g, at.t);
    // Sums of the norm's gradients wait in shared memory, for want of registers.
    float4* totals = (float4*)(ends.shared + 2 * ENDS) + threadIdx.x;
    totals[0] = totals[2 * GROUP] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float acc[16][4];
    word x[2][16];
    // Put what a stage begins with on its way: acc = (W e + s_i + t_j) / 2.
    auto open = [&](int number) {
      wait_for_copies<1>();
      __syncwarp();
#pragma unroll
      for (int r = 0; r < 2; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
          uint4 v = input[128 * r + further(in_tile, c)];
          x[r][4 * c] = v.x, x[r][4 * c + 1] = v.y, x[r][4 * c + 2] = v.z, x[r][4 * c + 3] = v.w;
        }
      if (number > 1) barrier(6 + number % 2 * 2 + group, 2 * GROUP);
      before_products();
      Operand right = of_ends + number % 2 * ENDS;
      start_mma<false, true, false>(acc, ends_of_rows, right);
      start_mma<true, true, false>(acc, ends_of_rows + 2 * PITCH, right + ENDS / 2);
#pragma unroll
      for (int k = 0; k < 8; k++)
        start_mma(acc, x[0][2 * k], x[1][2 * k], x[0][2 * k + 1], x[1][2 * k + 1], map + k * (32 * 128 / 16));
      commit_products();
    };
    open(0);
    for (int number = 0;; number++) {
      const Stage &stage = stages[number % RING], &next = stages[(number + 1) % RING];
      word slope[2][16], mean[2], along[2];
      float scale[2];
      if (number) barrier(1 + group, 2 * GROUP);
      wait_for_copies();
      __syncwarp();
      finish(acc, x);
      {
        float sum[2][4] = {}, along_y[2][4] = {};
        word scale2[2], shift2[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
          float shift = numbers[warp][1][at.g + 8 * r];
          scale[r] = numbers[warp][0][at.g + 8 * r];
          scale2[r] = pack(scale[r], scale[r]), shift2[r] = pack(shift, shift);
        }
#pragma unroll
        for (int c = 0; c < 4; c++) {
          // There are some. But without asking the compiler takes its time to pack the slopes and has too few registers.
          if (stage.sources == 0) continue;
          uint2 gain = factors.gain[8 * c + 2 * at.t + at.g % 2];
          word by[2][4];
#pragma unroll
          for (int r = 0; r < 2; r++) {
            word change[4], y[4], x[4];
            take4(change, tile[128 * r + further(in_tile, c)]);
            uint4 v = input[128 * r + further(in_tile, c)];
            take4(x, v);
            states[place + place_of(8 * r, 4 * c)] = v;  // for the third group
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
              y[p] = fma2(pack(silu[0], silu[1]), scale2[r], fma2(x[p], scale2[r], shift2[r]));
              by[r][p] = mul2(change[p], y[p]);
            }
            add_row(sum[r], change, gain);
            add_row(along_y[r], by[r], gain);
            left[place + place_of(8 * r, 4 * c)] = make_uint4(y[0], y[1], y[2], y[3]);  // where du will be
          }
          product[further(in_tile, c)] = make_uint4(
              add2(by[0][0], by[1][0]), add2(by[0][1], by[1][1]), add2(by[0][2], by[1][2]), add2(by[0][3], by[1][3]));
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
          float a = (sum[r][0] + sum[r][3]) * (-1.0f / WIDTH), b = (along_y[r][0] + along_y[r][3]) * (-1.0f / WIDTH);
          mean[r] = pack(a, a), along[r] = pack(b, b);
        }
      }
      __syncwarp();
      if (next.rows) fetch(input, e, next, rows, warp, at.lane);
      // acc = change gamma + mean + along y, divided by scale; slope, which has that scale twice, becomes 2 du.
#pragma unroll
      for (int c = 0; c < 4; c++) {
        word y[2][4], change[2][4];
#pragma unroll
        for (int r = 0; r < 2; r++)
          take4(y[r], left[place + place_of(8 * r, 4 * c)]), take4(change[r], tile[128 * r + further(in_tile, c)]);
        of_normed(acc, slope, y, change, mean, along, scale, factors, c, at.lane);
#pragma unroll
        for (int r = 0; r < 2; r++)
          left[place + place_of(8 * r, 4 * c)] =
              make_uint4(slope[r][4 * c], slope[r][4 * c + 1], slope[r][4 * c + 2], slope[r][4 * c + 3]);
      }
      publish();
      arrive(3 + group, 2 * GROUP);
      start_transposed(acc, slope, transposed);
      __syncwarp();
      float4 a = totals[0], b = totals[2 * GROUP];
      float dgamma[4] = {a.x, a.y, a.z, a.w}, dbeta[4] = {b.x, b.y, b.z, b.w};
      add_columns(dbeta, dgamma, tile, product, factors, at.lane);
      totals[0] = make_float4(dgamma[0], dgamma[1], dgamma[2], dgamma[3]);
      totals[2 * GROUP] = make_float4(dbeta[0], dbeta[1], dbeta[2], dbeta[3]);
      __syncwarp();
      if (next.rows) {
        fetch_numbers(numbers[warp], scales, shifts, next, rows, warp, at.lane);
        fetch(tile, grad, next, rows, warp, at.lane);
      }
      word inside = stage.inside[warp] >> at.g;
      uint4* to[2];
#pragma unroll
      for (int r = 0; r < 2; r++) to[r] = de + piece(stage.pair, at.t) + rows.bytes[warp][at.g % 2][at.g / 2 + 4 * r] / 16;
      finish(acc, slope);
#pragma unroll
      for (int q = 0; q < 16; q++)
#pragma unroll
        for (int r = 0; r < 2; r++) slope[r][q] = pack(acc[q][2 * r], acc[q][2 * r + 1]);
      auto store = [&] {
#pragma unroll
        for (int r = 0; r < 2; r++)
          if (inside >> 8 * r & 1) put(to[r], slope[r]);
      };
      if (next.rows == 0) {
        store();
        break;
      }
      open(number + 1);  // whose products are on their way meanwhile
      store();
    }
    float* sums = (float*)products;  // (2, 128) for each warp
    float4 a = totals[0], b = totals[2 * GROUP];
    float dgamma[4] = {a.x, a.y, a.z, a.w}, dbeta[4] = {b.x, b.y, b.z, b.w};
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
  Ahead ahead{{e, grad}, {scales, shifts}};
  add_up(left, states, ends, stages, rows, plan, ahead, dw, ds, dt, scratch, warp - 8, at);
}
#endif
