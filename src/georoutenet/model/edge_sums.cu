// Sums over pairs for the backward pass of Eq. edge_proposal: dW = sum du^T e, ds_i = sum_j du_ij, dt_j = sum_i du_ij.
//
// A block walks along the sources of an item: at most 64 targets and a part of the sources of one instance. Its stage
// in shared memory has 4 tiles of 16 pairs, of du and then of e; a source takes as many tiles as its targets need, the
// last one filled up with zeros, and with few targets a stage holds several sources. All sums are matrix products over
// the pairs of a tile. Warp w keeps 32 x 64 of dW and 16 features of the sums over sources in registers.
#ifndef UPDATE_SUMS_WARPS
#define UPDATE_SUMS_WARPS 8
#endif
constexpr int TILES = 4;              // of a stage
constexpr int PIECES = 16 * WIDTH / 8;  // of 16 bytes in a tile
constexpr int STAGE = 2 * TILES * PIECES;
constexpr int STAGES = 3;

struct Item {
  int instance, band, part, i, end;
  __device__ Item(int item, int m, int bands, int parts, int chunk) {
    part = item % parts, band = item / parts % bands, instance = item / parts / bands;
    i = part * chunk, end = min(i + chunk, m);
  }
};

extern "C" __global__ void __launch_bounds__(UPDATE_SUMS_WARPS * 32, 2)
update_sums(const uint4* du, const uint4* e, float* dw, float* ds, float* dt, int m, int n, int items, int bands,
            int width, int parts, int chunk) {
  extern __shared__ uint4 shared[];
  Lane at;
  int warp = threadIdx.x / 32, slice = warp % 4, side = warp / 4;
  int tiles = (width + 15) / 16, sources = TILES / tiles;

  int ahead = blockIdx.x;
  Item next(ahead, m, bands, parts, chunk);
  // Thread 16 row + p copies piece p of a row of each tile, to where eight rows' same pieces lie in different banks.
  int row = threadIdx.x / 16, place = threadIdx.x ^ row % 8;
  auto fetch = [&](int slot) {
    if (ahead < items) {
      int i = next.i, stop = min(i + sources, next.end), j = next.band * width, inner = min(width, n - j);
      uint4* to = shared + slot * STAGE + place;
      int tile = 0;
#pragma unroll
      for (int k = 0; k < TILES; k++) {
        bool inside = row < (i < stop ? inner - 16 * tile : 0);
        size_t from = piece((next.instance * m + i) * n + j + 16 * tile, 0);
        copy16(to + k * PIECES, du + from + threadIdx.x, inside);
        copy16(to + (TILES + k) * PIECES, e + from + threadIdx.x, inside);
        if (++tile == tiles) tile = 0, i++;
      }
      next.i += sources;
      if (next.i >= next.end) {
        ahead += gridDim.x;
        next = Item(ahead, m, bands, parts, chunk);
      }
    }
    commit_copies();
  };
#pragma unroll
  for (int slot = 0; slot < STAGES - 1; slot++) fetch(slot);

  // Lanes' rows: of du, matrices (pairs 0-7, features 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15); of e, with the middle
  // two exchanged. So come mma's operands in order: a tile's left, and two tiles' right.
  int bits = at.lane / 8, last = at.lane % 8;
  const uint4* left = shared + (last + bits / 2 * 8) * 16;
  const uint4* right = shared + TILES * PIECES + (last + bits % 2 * 8) * 16;
  int left_piece = 4 * slice + 2 * side + bits % 2 ^ last, right_piece = 8 * side + bits / 2 ^ last;
  int features = 32 * slice + 16 * side;  // of the first tile of du
  word same = at.g / 2 == at.t ? at.g % 2 ? 0x3f800000u : 0x3f80u : 0;  // of the unit matrix

  float weight[2][8][4] = {};
  int slot = 0;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    Item now(item, m, bands, parts, chunk);
    float over_sources[TILES][2][4] = {};
    for (; now.i < now.end; now.i += sources) {
      wait_for_copies<STAGES - 2>();
      __syncthreads();
      fetch(slot ? slot - 1 : STAGES - 1);
      float over_targets[4] = {};
#pragma unroll
      for (int k = 0; k < TILES; k++) {
        word a[2][4];
        load_transposed(a[0], left + slot * STAGE + k * PIECES + left_piece);
        load_transposed(a[1], left + slot * STAGE + k * PIECES + (left_piece ^ 2));
        // Ones in the column of the tile's source.
        word ones = (unsigned)(k - at.g * tiles) < (unsigned)tiles ? 0x3f803f80u : 0;
        mma(over_targets, a[0][0], a[0][1], a[0][2], a[0][3], ones, ones);
        mma(over_sources[k][0], same, 0, 0, same, a[0][0], a[0][1]);
        mma(over_sources[k][1], same, 0, 0, same, a[0][2], a[0][3]);
#pragma unroll
        for (int q = 0; q < 4; q++) {
          word b[4];
          load_transposed(b, right + slot * STAGE + k * PIECES + (right_piece ^ 2 * q));
#pragma unroll
          for (int h = 0; h < 2; h++) {
            mma(weight[h][2 * q], a[h][0], a[h][1], a[h][2], a[h][3], b[0], b[1]);
            mma(weight[h][2 * q + 1], a[h][0], a[h][1], a[h][2], a[h][3], b[2], b[3]);
          }
        }
      }
      int count = min(sources, now.end - now.i);
      float* to = ds + (size_t)((now.instance * bands + now.band) * m + now.i) * WIDTH + features + at.g;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        int source = 2 * at.t + h;
        if (source < count) to[source * WIDTH] = over_targets[h], to[source * WIDTH + 8] = over_targets[2 + h];
      }
      slot = slot + 1 == STAGES ? 0 : slot + 1;
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int c = 0; c < 4; c++) {
        if (tiles <= 2) over_sources[0][h][c] += over_sources[2][h][c], over_sources[1][h][c] += over_sources[3][h][c];
        if (tiles == 1) over_sources[0][h][c] += over_sources[1][h][c];
      }
    int inner = min(width, n - now.band * width);
    float* to = dt + (size_t)((now.instance * parts + now.part) * n + now.band * width) * WIDTH + features + 2 * at.t;
#pragma unroll
    for (int k = 0; k < TILES; k++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        int j = 16 * k + 8 * r + at.g;
        if (j >= inner) continue;
        const float(&sum)[4] = over_sources[k][r];
        *(float2*)(to + j * WIDTH) = make_float2(sum[0], sum[1]);
        *(float2*)(to + j * WIDTH + 8) = make_float2(sum[2], sum[3]);
      }
  }
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int q = 0; q < 8; q++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        int out = 32 * slice + 16 * (h ^ side) + 8 * r + at.g;
        float* to = dw + (size_t)(blockIdx.x * WIDTH + out) * WIDTH + 64 * side + 8 * q + 2 * at.t;
        *(float2*)to = make_float2(weight[h][q][2 * r], weight[h][q][2 * r + 1]);
      }
}
