// Sums over pairs for the backward pass of Eq. edge_proposal: dW = sum du^T e, ds_i = sum_j du_ij, dt_j = sum_i du_ij.
//
// A team of 8 warps walks along the sources of an item: a band of at most 64 targets and a part of the sources of one
// instance. Its stages in shared memory have 4 tiles of 16 pairs, of du and then of e; a source takes as many tiles as
// its targets need, the last one filled up with zeros, and with few targets a stage holds several sources. All sums are
// matrix products over the pairs of a tile. A warp keeps 32 x 64 of dW and 16 features of the sums over sources in
// registers. Where there is shared memory for two teams, one works while the other waits.
constexpr int TEAM = 256;               // threads
constexpr int TILES = 4;                // of a stage
constexpr int PIECES = 16 * WIDTH / 8;  // of 16 bytes in a tile
constexpr int STAGE = 2 * TILES * PIECES;
constexpr int STAGES = 3;

struct Item {
  int instance, band, part, source, left;  // sources from `source` on
  __device__ Item(int item, int m, int bands, int parts, int chunk) {
    part = item % parts, band = item / parts % bands, instance = item / parts / bands;
    source = part * chunk, left = min(chunk, m - source);
  }
};

// Two neighboring rows' sums: rounded where there is only one part of them.
__device__ __forceinline__ void put_sums(void* to, size_t at, float first, float second, int rows, bool whole) {
  if (whole) {
    word both = pack(first, second);
    unsigned short* out = (unsigned short*)to + at;
    if (rows > 0) out[0] = both;
    if (rows > 1) out[WIDTH] = both >> 16;
  } else {
    float* out = (float*)to + at;
    if (rows > 0) out[0] = first;
    if (rows > 1) out[WIDTH] = second;
  }
}

extern "C" __global__ void __launch_bounds__(UPDATE_SUMS_WARPS * 32, 1)
update_sums(const uint4* du, const uint4* e, float* dw, void* ds, void* dt, int m, int n, int items, int bands, int width,
            int parts, int chunk) {
  extern __shared__ uint4 shared[];
  Lane at;
  int team = from_lane(threadIdx.x / TEAM, 0), thread = threadIdx.x % TEAM, slice = thread / 32 % 4, side = thread / 128;
  int tiles = (width + 15) / 16, sources = TILES / tiles;
  int start = team * gridDim.x + blockIdx.x, step = gridDim.x * (blockDim.x / TEAM);
  uint4* stages = shared + team * STAGES * STAGE;

  // Thread 16 row + p copies piece p of a row of each tile, to where eight rows' same pieces lie in different banks.
  int row = thread / 16, ahead = start, first, left, inner;
  auto open = [&] {
    Item next(ahead, m, bands, parts, chunk);
    first = (next.instance * m + next.source) * n + next.band * width;
    left = next.left, inner = min(width, n - next.band * width);
  };
  auto fetch = [&](int slot) {
    if (ahead < items) {
      uint4* to = stages + slot * STAGE + (thread ^ row % 8);
      int most = min(left, sources), tile = 0, source = 0;
#pragma unroll
      for (int k = 0; k < TILES; k++) {
        bool inside = row < (source < most ? inner - 16 * tile : 0);
        unsigned from = (unsigned)(first + source * n + 16 * tile) * 16 + thread;
        copy16(to + k * PIECES, du + from, inside);
        copy16(to + (TILES + k) * PIECES, e + from, inside);
        if (++tile == tiles) tile = 0, source++;
      }
      first += sources * n, left -= sources;
      if (left <= 0) {
        ahead += step;
        open();
      }
    }
    commit_copies();
  };
  open();
#pragma unroll
  for (int slot = 0; slot < STAGES - 1; slot++) fetch(slot);

  // Lanes' rows: of du, matrices (pairs 0-7, features 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15); of e, with the middle
  // two exchanged. So come mma's operands in order: a tile's left, and two tiles' right.
  int matrix = at.lane / 8, last = at.lane % 8;
  const uint4* du_rows = stages + (last + matrix / 2 * 8) * 16;
  const uint4* e_rows = stages + TILES * PIECES + (last + matrix % 2 * 8) * 16;
  int du_piece = 4 * slice + 2 * side + matrix % 2 ^ last, e_piece = 8 * side + matrix / 2 ^ last;
  int features = 32 * slice + 16 * side + at.g;                         // of the first tile of du
  word same = at.g / 2 == at.t ? at.g % 2 ? 0x3f800000u : 0x3f80u : 0;  // of the unit matrix

  float weight[2][8][4] = {};
  int slot = 0;
  for (int item = start; item < items; item += step) {
    Item now(item, m, bands, parts, chunk);
    float over_sources[TILES][2][4] = {}, over_targets[4] = {};
    int columns = 0;  // of over_targets in use, one for each source
    int base = (now.instance * bands + now.band) * m + now.source;
    while (now.left > 0) {
      wait_for_copies<STAGES - 2>();
      barrier(team + 1, TEAM);
      fetch(slot ? slot - 1 : STAGES - 1);
      int mine = (columns - at.g) * tiles;  // minus the first tile of the source of column g
#pragma unroll
      for (int k = 0; k < TILES; k++) {
        word a[2][4];
        load_transposed(a[0], du_rows + slot * STAGE + k * PIECES + du_piece);
        load_transposed(a[1], du_rows + slot * STAGE + k * PIECES + (du_piece ^ 2));
        word ones = (unsigned)(k + mine) < (unsigned)tiles ? 0x3f803f80u : 0;  // in the column of the tile's source
        mma(over_targets, a[0][0], a[0][1], ones);
        mma(over_targets, a[0][2], a[0][3], ones);
        mma(over_sources[k][0], a[0][0], a[0][1], same);
        mma(over_sources[k][1], a[0][2], a[0][3], same);
        add_tile(weight, a, e_rows + slot * STAGE + k * PIECES, e_piece);
      }
      columns += min(sources, now.left);
      now.left -= sources;
      if (columns + sources > 8 || now.left <= 0) {
        int rest = columns - 2 * at.t;
        size_t to = (size_t)(base + 2 * at.t) * WIDTH + features;
        put_sums(ds, to, over_targets[0], over_targets[1], rest, bands == 1);
        put_sums(ds, to + 8, over_targets[2], over_targets[3], rest, bands == 1);
        for (float& sum : over_targets) sum = 0;
        base += columns, columns = 0;
      }
      slot = slot + 1 == STAGES ? 0 : slot + 1;
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
      for (int c = 0; c < 4; c++) {
        if (tiles <= 2) over_sources[0][r][c] += over_sources[2][r][c], over_sources[1][r][c] += over_sources[3][r][c];
        if (tiles == 1) over_sources[0][r][c] += over_sources[1][r][c];
      }
    int first = now.band * width, inner = min(width, n - first);
    size_t to = (size_t)((now.instance * parts + now.part) * n + first) * WIDTH + features;
#pragma unroll
    for (int k = 0; k < TILES; k++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        int j = 16 * k + 8 * r + 2 * at.t;
        const float(&sum)[4] = over_sources[k][r];
        put_sums(dt, to + j * WIDTH, sum[0], sum[1], inner - j, parts == 1);
        put_sums(dt, to + j * WIDTH + 8, sum[2], sum[3], inner - j, parts == 1);
      }
  }

  // The first team adds the others' parts of dW to its own.
  barrier(team + 1, TEAM);
  float* mailbox = (float*)stages + thread;
  if (team) {
#pragma unroll
    for (int k = 0; k < 64; k++) mailbox[k * TEAM] = weight[k / 32][k / 4 % 8][k % 4];
  }
  __syncthreads();
  if (team) return;
  for (int other = 1; other < blockDim.x / TEAM; other++) {
    const float* theirs = mailbox + other * STAGES * STAGE * 4;
#pragma unroll
    for (int k = 0; k < 64; k++) weight[k / 32][k / 4 % 8][k % 4] += theirs[k * TEAM];
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
