// Eqs. edge_proposal and edge_update backward to the gradients of states and proposals on Hopper: what update_backward
// (edge_update.cu) computes, with as few registers as sixteen warps have, 128 a thread.
//
// Four warps, a group, have 64 pairs. Both left operands of their products lie in shared memory: the states e, and the
// gradients of proposals du in the place of the result's gradients. So a thread holds 64 sums and, at most, 32 words more.
// The features of these operands are in order; those of results are as in all tiles.
constexpr int PITCH = 64 + 2;  // of 16 bytes, from a piece of the rows to the next; four of 2 rows in different banks
constexpr int PIECES = 16 * PITCH;
constexpr int GROUP = 128;  // threads
constexpr word ONE = 0x3f803f80u, HALF = 0x3f003f00u;

__device__ __forceinline__ int place_of(int row, int piece) { return piece * PITCH + row; }
__device__ __forceinline__ Operand rows_in(const uint4* rows) { return operand(rows, 16 * PITCH, 128); }
// Fragment k of a matrix, features in in order.
__device__ __forceinline__ void place_in_order(uint4* matrix, int k, uint4 v) {
  matrix[(k / 32 % 4 * 4 + k % 4) * 128 + k / 128 * 8 + k % 32 / 4] = v;
}
// W / 2 as the right operand of x W^T / 2, and W as the one of x W.
__device__ void fill_both(uint4* halves, uint4* transposed, const unsigned short* weight) {
  transfer(
      FRAGMENTS,
      [&](int k) { return *(const uint4*)(weight + feature(k / 128, k % 32 / 4) * WIDTH + k / 32 % 4 * 32 + k % 4 * 8); },
      [&](int k, uint4 v) {
        place_in_order(halves, k, make_uint4(mul2(v.x, HALF), mul2(v.y, HALF), mul2(v.z, HALF), mul2(v.w, HALF)));
      });
  transfer(
      FRAGMENTS,
      [&](int k) {
        const unsigned short* column = weight + (k / 32 % 4 * 32 + k % 4 * 8) * WIDTH + feature(k / 128, k % 32 / 4);
        word w[4];
#pragma unroll
        for (int p = 0; p < 4; p++) w[p] = column[2 * p * WIDTH] | (word)column[(2 * p + 1) * WIDTH] << 16;
        return make_uint4(w[0], w[1], w[2], w[3]);
      },
      [&](int k, uint4 v) { place_in_order(transposed, k, v); });
}
// The warp's 16 rows on their way, zeros beyond the last row: whole lines of memory at a time.
__device__ __forceinline__ void fetch(uint4* to, const uint4* from, int tile, int pairs, int lane) {
  int row = 16 * tile + lane % 2;
  to += place_of(lane % 2, lane / 2), from += piece(row, lane / 2);
#pragma unroll
  for (int k = 0; k < 8; k++) copy16(to + 2 * k, from + 32 * k, row + 2 * k < pairs);
  commit_copies();
}
// acc += rows b
__device__ __forceinline__ void start(float (&acc)[16][4], Operand rows, Operand b) {
  hold(acc);
  before_products();
#pragma unroll
  for (int k = 0; k < 8; k++) start_mma<true, false>(acc, rows + 2 * k * PITCH, b + k * (32 * 128 / 16));
  commit_products();
}
__device__ __forceinline__ void finish(float (&acc)[16][4]) {
  wait_for_products();
  hold(acc);
}

#ifdef UPDATE_STATES_WARPS
extern "C" __global__ void __launch_bounds__(UPDATE_STATES_WARPS * 32, 1)
update_states(const uint4* e, const uint4* source, const uint4* target, const unsigned short* weight, const float* gamma,
              const float* scales, const float* shifts, const uint4* grad, uint4* de, uint4* du, float* norms, int m, int n,
              int pairs) {
  alignas(128) extern __shared__ uint4 shared[];
  __shared__ Ends ends;
  __shared__ Factors factors;
  __shared__ float4 over_pairs[UPDATE_STATES_WARPS * 32];
  Lane at;
  int warp = from_lane((word)threadIdx.x / 32, 0), group = warp / 4;
  // States, later the norm's results; gradients, later those of proposals. The group's rows, and from the warp's on.
  uint4* rows = shared + 2 * FRAGMENTS + group * 2 * PIECES;
  uint4 *states = rows + warp % 4 * 16, *changes = states + PIECES;
  // What threads have no registers for: the last slopes of row g + 8, and their shares of dbeta (`over_pairs`).
  uint4* last = shared + 2 * FRAGMENTS + UPDATE_STATES_WARPS / 4 * 2 * PIECES + threadIdx.x;
  Share share(pairs);
  int tile = share.first + warp;
  if (tile < share.last) {
    fetch(states, e, tile, pairs, at.lane);
    fetch(changes, grad, tile, pairs, at.lane);
  }
  fill_both(shared, shared + FRAGMENTS, weight);
  factors.set(gamma, at);
  if (threadIdx.x == 0) ends.set(m, n, pairs);
  publish();
  __syncthreads();
  Operand map = matrix_in(shared), transposed = matrix_in(shared + FRAGMENTS);
  float dgamma[4] = {};
  over_pairs[threadIdx.x] = make_float4(0, 0, 0, 0);
  for (; tile < share.last; tile += UPDATE_STATES_WARPS) {
    float acc[16][4], scale[2], shift[2];
    word slope[2][16], mean[2], along[2], thread = threadIdx.x;
    keep(thread);  // and what follows from it is computed again each time: registers are few
    at.lane = thread & 31, at.g = (thread & 31) / 4, at.t = thread & 3;
    int number = 1 + thread / GROUP;
    int place = place_of(at.g, at.t);
    ends.take(acc, tile, at, diagonal(at) & HALF, source, target);
    wait_for_copies<1>();
    publish();
    barrier(number, GROUP);
    start(acc, rows_in(rows), map);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = min(16 * tile + at.g + 8 * r, pairs - 1);
      scale[r] = scales[row], shift[r] = shifts[row];
    }
    wait_for_copies();
    finish(acc);
    barrier(number, GROUP);
    float sum[4] = {}, product[4] = {};  // [0] + [3] of row g where t is even, of row g + 8 where it is odd
    word scale2[2], shift2[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      scale2[r] = pack(scale[r], scale[r]), shift2[r] = pack(shift[r], shift[r]);
      scale[r] *= 0.5f;
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
      // In blocks of their own, or the compiler takes its time to pack the slopes and has too few registers. Beyond the
      // last pair they are not needed.
      int any = 16 * tile < pairs;
      keep(any);
      if (!any) continue;
      uint4* here = states + place + place_of(0, 4 * c);
      uint2 gain = factors.gain[8 * c + 2 * at.t + at.g % 2], none = make_uint2(0, 0);
      word by[2][4];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        word y[4], change[4], now[4];
        take4(y, here[8 * r]), take4(change, here[PIECES + 8 * r]);
#pragma unroll
        for (int p = 0; p < 4; p++) {
          float silu[2], slopes[2];
#pragma unroll
          for (int k = 0; k < 2; k++) {
            float u = acc[4 * c + p][2 * r + k], tanh = tangent(u);
            silu[k] = fmaf(u, tanh, u);
            slopes[k] = fmaf(silu[k], fmaf(tanh, -scale[r], scale[r]), fmaf(tanh, scale[r], scale[r]));
          }
          now[p] = pack(slopes[0], slopes[1]);
          if (c < 3 || r == 0) slope[r][4 * c + p] = now[p];
          y[p] = fma2(pack(silu[0], silu[1]), scale2[r], fma2(y[p], scale2[r], shift2[r]));
          by[r][p] = mul2(change[p], y[p]);
        }
        here[8 * r] = make_uint4(y[0], y[1], y[2], y[3]);
        if (c == 3 && r == 1) *last = make_uint4(now[0], now[1], now[2], now[3]);
        add_row(sum, change, at.g / 2 % 2 == r ? gain : none);
        add_row(product, by[r], at.g / 2 % 2 == r ? gain : none);
      }
      // Columns are added up in row 4 c + p of the result.
#pragma unroll
      for (int p = 0; p < 4; p++) {
        word one = at.g == c % 2 * 4 + p ? ONE : 0;
        mma(dgamma, c < 2 ? one : 0, c < 2 ? 0 : one, transpose(add2(by[0][p], by[1][p])));
      }
    }
    float a = (sum[0] + sum[3]) * (-1.0f / WIDTH), b = (product[0] + product[3]) * (-1.0f / WIDTH);
    mean[0] = pack(a, a), along[0] = pack(b, b);
    mean[1] = shuffle(mean[0], 1), along[1] = shuffle(along[0], 1);
    if (at.t % 2) {
      word other = mean[0];
      mean[0] = mean[1], mean[1] = other;
      other = along[0];
      along[0] = along[1], along[1] = other;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) scale[r] *= 2;
    // Lane (g, t) has features 16 column + g + (0, 8) of column 2 t and of column 2 t + 1.
    float4 old = over_pairs[thread];
    float dbeta[4] = {old.x, old.y, old.z, old.w};
    const uint4* across = changes + place_of(at.lane % 8 + at.lane / 16 * 8, at.lane / 8 % 2);
#pragma unroll
    for (int column = 0; column < 8; column++) {
      word x[4], one = at.g == column ? ONE : 0;
      load_transposed(x, across + place_of(0, 2 * column));
      mma(dbeta, x[0], x[1], x[2], x[3], one, one);
    }
    over_pairs[thread] = make_float4(dbeta[0], dbeta[1], dbeta[2], dbeta[3]);
    __syncwarp();
    // acc = change gamma + mean + along y, divided by scale; slope, which has that scale, becomes du.
#pragma unroll
    for (int c = 0; c < 4; c++) {
      uint4* here = states + place + place_of(0, 4 * c);
      word y[2][4], change[2][4], gains[2][4], rest[4], now[4];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        take4(y[r], here[8 * r]), take4(change[r], here[PIECES + 8 * r]);
        take4(gains[r], factors.gains[2 * c + r][at.lane]);
      }
      take4(rest, factors.rests[c][at.lane]);
      if (c == 3) take4(now, *last);
#pragma unroll
      for (int p = 0; p < 4; p++) {
        int q = 4 * c + p;
        set_mma(acc[q], change[0][p], change[1][p], fma2(y[0][p], along[0], mean[0]),
                fma2(y[1][p], along[1], mean[1]), gains[p / 2][p % 2 * 2], gains[p / 2][p % 2 * 2 + 1]);
        mma(acc[q], change[0][p], change[1][p], rest[p]);
      }
#pragma unroll
      for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int p = 0; p < 4; p++) {
          float(&two)[4] = acc[4 * c + p];
          change[r][p] = mul2(pack(two[2 * r], two[2 * r + 1]), c < 3 || r == 0 ? slope[r][4 * c + p] : now[p]);
          two[2 * r] *= scale[r], two[2 * r + 1] *= scale[r];
        }
        here[PIECES + 8 * r] = make_uint4(change[r][0], change[r][1], change[r][2], change[r][3]);
      }
    }
    publish();
    barrier(number, GROUP);
    start(acc, rows_in(rows + PIECES), transposed);
    bool is_more = tile + UPDATE_STATES_WARPS < share.last;
    if (is_more) fetch(states, e, tile + UPDATE_STATES_WARPS, pairs, at.lane);
    // Whole lines of memory at a time.
    int row = 16 * tile + at.lane % 2;
    uint4* to = du + piece(row, at.lane / 2);
    const uint4* from = changes + place_of(at.lane % 2, at.lane / 2);
#pragma unroll
    for (int k = 0; k < 8; k++)
      if (row + 2 * k < pairs) to[32 * k] = from[2 * k];
    finish(acc);
    barrier(number, GROUP);
    if (is_more) fetch(changes, grad, tile + UPDATE_STATES_WARPS, pairs, at.lane);
    row = 16 * tile + at.g;
    to = de + piece(row, at.t);
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        word w[4];
#pragma unroll
        for (int p = 0; p < 4; p++) w[p] = pack(acc[4 * c + p][2 * r], acc[4 * c + p][2 * r + 1]);
        if (row + 8 * r < pairs) to[128 * r + 4 * c] = make_uint4(w[0], w[1], w[2], w[3]);
      }
  }
  __syncthreads();
  float* sums = (float*)shared;  // (2, 128) for each warp
  float* mine = sums + warp * 2 * WIDTH;
  float4 of_beta = over_pairs[threadIdx.x];
  float dbeta[4] = {of_beta.x, of_beta.y, of_beta.z, of_beta.w};
#pragma unroll
  for (int k = 0; k < 4; k++) {
    mine[feature(at.g + k / 2 * 8, 2 * at.t + k % 2)] = dgamma[k];
    mine[WIDTH + 16 * (2 * at.t + k % 2) + at.g + 8 * (k / 2)] = dbeta[k];
  }
  __syncthreads();
  for (int f = threadIdx.x; f < 2 * WIDTH; f += blockDim.x) {
    float sum = 0;
    for (int other = 0; other < UPDATE_STATES_WARPS; other++) sum += sums[other * 2 * WIDTH + f];
    norms[blockIdx.x * 2 * WIDTH + f] = sum;
  }
}
#endif
