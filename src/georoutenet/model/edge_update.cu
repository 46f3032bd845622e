// Eqs. edge_proposal and edge_update: forward, and backward to the gradients of states and proposals.

// The tiles of a block, in whole numbers of warps that multiply together; some may be beyond the last.
struct Share {
  int first, last;
  __device__ Share(int pairs) {
    int tiles = (pairs + 16 * TOGETHER - 1) / (16 * TOGETHER), share = (tiles + gridDim.x - 1) / gridDim.x;
    first = TOGETHER * share * blockIdx.x;
    last = TOGETHER * min(tiles, share * ((int)blockIdx.x + 1));
  }
};
// acc = s_i + t_j for the thread's two rows.
__device__ __forceinline__ void ends(float (&acc)[16][4], const int (&rows)[2], int base, int t, const uint4* source,
                                     const uint4* target, int m, int n, float per_m, float per_n) {
  base = min(base, rows[0]);  // in a tile beyond the last
  int first = base / n, instance = first / m, offset = base - first * n;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int j = rows[r] - base + offset;
    int crossed = (int)((j + 0.5f) * per_n);
    int i = first + crossed;
    int other = instance + (int)((i - instance * m + 0.5f) * per_m);
    word a[16], b[16];
    take(a, source + piece(i, t), 4);
    take(b, target + piece(other * n + j - crossed * n, t), 4);
#pragma unroll
    for (int q = 0; q < 16; q++) {
      word s = add2(a[q], b[q]);
      acc[q][2 * r] = low(s), acc[q][2 * r + 1] = high(s);
    }
  }
}

#ifdef UPDATE_FORWARD_WARPS
extern "C" __global__ void __launch_bounds__(UPDATE_FORWARD_WARPS * 32, 1)
update_forward(const uint4* e, const uint4* source, const uint4* target, const unsigned short* weight, const float* gamma,
        const float* beta, uint4* out, float* scales, float* shifts, int m, int n, int pairs) {
  extern __shared__ uint4 shared[];
  __shared__ float2 norm[WIDTH];
  Lane at;
  fill(shared, weight);
  for (int f = threadIdx.x; f < WIDTH; f += blockDim.x) norm[f] = make_float2(gamma[f], beta[f]);
  publish();
  __syncthreads();
  Matrix map = matrix_in(shared);
  uint4* next = shared + FRAGMENTS + threadIdx.x / 32 * 256 + at.lane;
  Share share(pairs);
  float per_m = 1.0f / m, per_n = 1.0f / n;
  auto fetch = [&](int tile) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const uint4* row = e + piece(min(16 * tile + at.g + 8 * r, pairs - 1), at.t);
#pragma unroll
      for (int c = 0; c < 4; c++) copy16(next + (4 * r + c) * 32, row + 4 * c);
    }
    commit_copies();
  };
  int tile = share.first + threadIdx.x / 32;
  if (tile < share.last) fetch(tile);
  for (; tile < share.last; tile += UPDATE_FORWARD_WARPS) {
    int base = 16 * tile;
    int rows[2] = {min(base + at.g, pairs - 1), min(base + at.g + 8, pairs - 1)};
    float acc[16][4];
    word x[2][16];
    ends(acc, rows, base, at.t, source, target, m, n, per_m, per_n);
    wait_for_copies();
    take(x[0], next, 32);
    take(x[1], next + 128, 32);
    start(acc, x, map);
    if (tile + UPDATE_FORWARD_WARPS < share.last) fetch(tile + UPDATE_FORWARD_WARPS);
    finish(acc, x);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float sum = 0, square = 0;
#pragma unroll
      for (int q = 0; q < 16; q++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          float half = 0.5f * acc[q][2 * r + h];
          float y = (h ? high(x[r][q]) : low(x[r][q])) + fmaf(half, tangent(half), half);
          sum += y, square = fmaf(y, y, square);
          acc[q][2 * r + h] = y;
        }
      }
      float mean = over_row(sum) * (1.0f / WIDTH);
      float scale = rsqrtf(fmaxf(over_row(square) * (1.0f / WIDTH) - mean * mean, 0.0f) + 1e-5f);
      float shift = -mean * scale;
      bool inside = base + at.g + 8 * r < pairs;
      if (inside && at.t == 0) scales[rows[r]] = scale, shifts[rows[r]] = shift;
      word y[16];
#pragma unroll
      for (int q = 0; q < 16; q++) {
        float4 n2 = *(const float4*)&norm[32 * (q / 4) + 8 * at.t + 2 * (q % 4)];
        y[q] = pack(fmaf(fmaf(acc[q][2 * r], scale, shift), n2.x, n2.y),
                    fmaf(fmaf(acc[q][2 * r + 1], scale, shift), n2.z, n2.w));
      }
      if (inside) put(out + piece(rows[r], at.t), y);
    }
  }
}
#endif

#ifdef UPDATE_BACKWARD_WARPS
extern "C" __global__ void __launch_bounds__(UPDATE_BACKWARD_WARPS * 32, 1)
update_backward(const uint4* e, const uint4* source, const uint4* target, const unsigned short* weight, const float* gamma,
         const float* scales, const float* shifts, const uint4* grad, uint4* de, uint4* du, float* norms, int m, int n,
         int pairs) {
  extern __shared__ uint4 shared[];
  __shared__ float gain[WIDTH];
  Lane at;
  fill(shared, weight);
  fill_transposed(shared + FRAGMENTS, weight);
  for (int f = threadIdx.x; f < WIDTH; f += blockDim.x) gain[f] = gamma[f];
  publish();
  __syncthreads();
  Matrix map = matrix_in(shared), transposed = matrix_in(shared + FRAGMENTS);
  uint4* next = shared + 2 * FRAGMENTS + threadIdx.x / 32 * 512 + at.lane;
  Share share(pairs);
  float per_m = 1.0f / m, per_n = 1.0f / n;
  auto fetch = [&](int tile) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      size_t row = piece(min(16 * tile + at.g + 8 * r, pairs - 1), at.t);
#pragma unroll
      for (int c = 0; c < 4; c++) {
        copy16(next + (4 * r + c) * 32, e + row + 4 * c);
        copy16(next + (8 + 4 * r + c) * 32, grad + row + 4 * c);
      }
    }
    commit_copies();
  };
  float total[8] = {};
  int tile = share.first + threadIdx.x / 32;
  if (tile < share.last) fetch(tile);
  for (; tile < share.last; tile += UPDATE_BACKWARD_WARPS) {
    int base = 16 * tile;
    int rows[2] = {min(base + at.g, pairs - 1), min(base + at.g + 8, pairs - 1)};
    float scale[2], shift[2];
    float acc[16][4];
    word x[2][16], change[2][16], slope[2][16];
#pragma unroll
    for (int r = 0; r < 2; r++) scale[r] = scales[rows[r]], shift[r] = shifts[rows[r]];
    ends(acc, rows, base, at.t, source, target, m, n, per_m, per_n);
    wait_for_copies();
    take(x[0], next, 32);
    take(x[1], next + 128, 32);
    start(acc, x, map);
    take(change[0], next + 256, 32);
    take(change[1], next + 384, 32);
    finish(acc, x);
    float mean[2], along[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      bool inside = base + at.g + 8 * r < pairs;
      float sum = 0, product = 0;
#pragma unroll
      for (int q = 0; q < 16; q++) {
        if (!inside) change[r][q] = 0;
        float2 g2 = *(const float2*)&gain[32 * (q / 4) + 8 * at.t + 2 * (q % 4)];
        float y[2], d[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
          float u = acc[q][2 * r + h];
          float sigma = fmaf(0.5f, tangent(0.5f * u), 0.5f);
          float silu = u * sigma;
          d[h] = sigma + fmaf(-silu, sigma, silu);
          y[h] = fmaf((h ? high(x[r][q]) : low(x[r][q])) + silu, scale[r], shift[r]);
          float c = (h ? high(change[r][q]) : low(change[r][q])) * (h ? g2.y : g2.x);
          sum += c, product = fmaf(c, y[h], product);
        }
        x[r][q] = pack(y[0], y[1]);
        slope[r][q] = pack(d[0], d[1]);
      }
      mean[r] = over_row(sum) * (-1.0f / WIDTH) * scale[r];
      along[r] = over_row(product) * (-1.0f / WIDTH) * scale[r];
    }
    if (tile + UPDATE_BACKWARD_WARPS < share.last) fetch(tile + UPDATE_BACKWARD_WARPS);
    {
      word v[32];
#pragma unroll
      for (int q = 0; q < 16; q++) {
        v[q] = pack(fmaf(low(change[0][q]), low(x[0][q]), low(change[1][q]) * low(x[1][q])),
                    fmaf(high(change[0][q]), high(x[0][q]), high(change[1][q]) * high(x[1][q])));
        v[16 + q] = add2(change[0][q], change[1][q]);
      }
      scatter<16>(v, at.g);
      scatter<8>(v, at.g);
      scatter<4>(v, at.g);
#pragma unroll
      for (int k = 0; k < 4; k++) total[2 * k] += low(v[k]), total[2 * k + 1] += high(v[k]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
      for (int q = 0; q < 16; q++) {
        float2 g2 = *(const float2*)&gain[32 * (q / 4) + 8 * at.t + 2 * (q % 4)];
        float c0 = fmaf(low(x[r][q]), along[r], fmaf(low(change[r][q]) * g2.x, scale[r], mean[r]));
        float c1 = fmaf(high(x[r][q]), along[r], fmaf(high(change[r][q]) * g2.y, scale[r], mean[r]));
        acc[q][2 * r] = c0, acc[q][2 * r + 1] = c1;
        slope[r][q] = pack(c0 * low(slope[r][q]), c1 * high(slope[r][q]));
      }
      if (base + at.g + 8 * r < pairs) put(du + piece(rows[r], at.t), slope[r]);
    }
    multiply(acc, slope, transposed);
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
      for (int q = 0; q < 16; q++) x[r][q] = pack(acc[q][2 * r], acc[q][2 * r + 1]);
      if (base + at.g + 8 * r < pairs) put(de + piece(rows[r], at.t), x[r]);
    }
  }
  // Word k of lane (g, t) is word 4 g + k of 32: q = word % 16, gamma's before beta's.
  __syncthreads();
  float* sums = (float*)shared;  // (2, 128) for each warp
  float* mine = sums + threadIdx.x / 32 * 256;
#pragma unroll
  for (int k = 0; k < 8; k++) {
    int index = 4 * at.g + k / 2, q = index % 16;
    mine[index / 16 * WIDTH + 32 * (q / 4) + 8 * at.t + 2 * (q % 4) + k % 2] = total[k];
  }
  __syncthreads();
  for (int f = threadIdx.x; f < 2 * WIDTH; f += blockDim.x) {
    float sum = 0;
    for (int warp = 0; warp < UPDATE_BACKWARD_WARPS; warp++) sum += sums[warp * 256 + f];
    norms[blockIdx.x * 2 * WIDTH + f] = sum;
  }
}
#endif
