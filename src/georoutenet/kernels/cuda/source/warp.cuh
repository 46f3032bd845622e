// What one warp does with bfloat16 matrices, for all CUDA sources of the project. Tests replace this file by one that
// emulates a warp on the CPU.
typedef unsigned int word;  // two bfloat16 numbers

__device__ __forceinline__ word pack(float lo, float hi) {
  word w;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(hi), "f"(lo));
  return w;
}
__device__ __forceinline__ word add2(word a, word b) {
  word w;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(w) : "r"(a), "r"(0x3f803f80u), "r"(b));
  return w;
}
// a b + c, rounded once.
__device__ __forceinline__ word fma2(word a, word b, word c) {
  word w;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(w) : "r"(a), "r"(b), "r"(c));
  return w;
}
__device__ __forceinline__ word mul2(word a, word b) { return fma2(a, b, 0x80008000u); }  // -0 changes no sign
__device__ __forceinline__ float tangent(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float shuffle(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
__device__ __forceinline__ word shuffle(word x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
__device__ __forceinline__ long long shuffle(long long x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
__device__ __forceinline__ double shuffle(double x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
// c (16 x 8) += a (16 x 16) b (16 x 8)
__device__ __forceinline__ void mma(float (&c)[4], word a0, word a1, word a2, word a3, word b0, word b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// c (16 x 8) = a (16 x 16) b (16 x 8)
__device__ __forceinline__ void set_mma(float (&c)[4], word a0, word a1, word a2, word a3, word b0, word b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.0f));
}
// c (16 x 8) += a (16 x 8) b (8 x 8)
__device__ __forceinline__ void mma(float (&c)[4], word a0, word a1, word b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(b));
}
// c (16 x 8) = a (16 x 8) b (8 x 8)
__device__ __forceinline__ void set_mma(float (&c)[4], word a0, word a1, word b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
               : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
               : "r"(a0), "r"(a1), "r"(b), "f"(0.0f));
}
// A number of threads, whole warps of a block, wait for each other; number 0 is the whole block's.
__device__ __forceinline__ void barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// Be counted among them, without waiting.
__device__ __forceinline__ void arrive(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// 16 bytes to shared memory, without waiting for them.
__device__ __forceinline__ void copy16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((word)__cvta_generic_to_shared(shared)), "l"(global)
               : "memory");
}
// Zeros where there is nothing to copy.
__device__ __forceinline__ void copy16(void* shared, const void* global, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((word)__cvta_generic_to_shared(shared)),
               "l"(global), "r"(inside ? 16 : 0)
               : "memory");
}
// 4 bytes, likewise.
__device__ __forceinline__ void copy4(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((word)__cvta_generic_to_shared(shared)), "l"(global)
               : "memory");
}
// The 128 bytes around an address, for whoever reads them later.
__device__ __forceinline__ void prefetch(const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); }
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the last PENDING committed ones.
template <int PENDING = 0>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
// Four 8 x 8 matrices: lane l gives the address of row l % 8 (16 bytes) of matrix l / 8; lane 4 g + t gets columns 2 t
// and 2 t + 1 of row g, a word of each matrix.
__device__ __forceinline__ void load_matrices(word (&x)[4], const void* shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"((word)__cvta_generic_to_shared(shared))
               : "memory");
}
// Four 8 x 8 matrices, transposed: lane l gives the address of row l % 8 (16 bytes) of matrix l / 8; lane 4 g + t gets
// rows 2 t and 2 t + 1 of column g, a word of each matrix.
__device__ __forceinline__ void load_transposed(word (&x)[4], const void* shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"((word)__cvta_generic_to_shared(shared))
               : "memory");
}
__device__ __forceinline__ float from_lane(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
__device__ __forceinline__ word from_lane(word x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
__device__ __forceinline__ double from_lane(double x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
__device__ __forceinline__ word votes(bool x) { return __ballot_sync(0xffffffffu, x); }
// The lanes that have the same.
__device__ __forceinline__ word alike(word x) { return __match_any_sync(0xffffffffu, x); }
__device__ __forceinline__ word lowest(word x) { return __reduce_min_sync(0xffffffffu, x); }
// The length of a vector, rounded after every step, as PyTorch does it one operation at a time.
__device__ __forceinline__ float length(float x, float y) {
  return __fsqrt_rn(__fadd_rn(__fmul_rn(x, x), __fmul_rn(y, y)));
}
// The same, but the last bit or two.
__device__ __forceinline__ float rough_length(float x, float y) {
  float d;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x * x + y * y));
  return d;
}
__device__ __forceinline__ double length(double x, double y) {
  return __dsqrt_rn(__dadd_rn(__dmul_rn(x, x), __dmul_rn(y, y)));
}
__device__ __forceinline__ long long whole_number(double x) { return __double2ll_rn(x); }  // ties to even
// An 8 x 8 matrix, of which lane 4 g + t holds columns 2 t and 2 t + 1 of row g.
__device__ __forceinline__ word transpose(word x) {
  word y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
// Byte k of the result is byte s % 8 of a (0 to 3) and b (4 to 7), s the selector's k-th hexadecimal digit from the
// right; eight copies of its highest bit where s is 8 or more.
template <word SELECTOR>
__device__ __forceinline__ word permute(word a, word b) {
  word w;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(w) : "r"(a), "r"(b), "n"(SELECTOR));
  return w;
}
// A number that the compiler shall keep in a register rather than compute again.
__device__ __forceinline__ void keep(int& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void keep(word& x) { asm volatile("" : "+r"(x)); }
// The sign of a number behind the bits.
__device__ __forceinline__ word shift_in(word bits, float x) { return __funnelshift_l(__float_as_uint(x), bits, 1); }

// Hopper: wgmma, by four warps, the number of the first divisible by 4. Each has 16 of 64 rows, and its operand
// and result are those of mma; the other operand lies in shared memory.
#ifdef HOPPER
typedef unsigned long long Operand;
// b (k, n) as cores of 8 n with 16 bytes along k, 128 bytes a core: so many bytes from a core to the next.
__device__ __forceinline__ Operand operand(const void* shared, int along_k, int along_n) {
  word start = (word)__cvta_generic_to_shared(shared);
  return (start & 0x3ffffu) >> 4 | (Operand)(along_k >> 4) << 16 | (Operand)(along_n >> 4) << 32;
}
// c (64 x 128) += a (64 x 16) b (16 x 128), on its way until waited for: nobody touches c, changes a or b before.
// Without ADD, c = a b; it still is given, so that it stays where it is. TRANSPOSED: b as cores of 8 k with 16 bytes along n.
template <bool ADD = true, bool TRANSPOSED = false>
__device__ __forceinline__ void start_mma(float (&c)[16][4], const word& a0, const word& a1, const word& a2,
                                          const word& a3, Operand b) {
  asm volatile(
      "{.reg .pred p;\n\t"
      "setp.ne.b32 p, %69, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
      "{%64,%65,%66,%67}, %68, p, 1, 1, %70;}"
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]),
        "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
        "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
        "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
        "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]),
        "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
        "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
        "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]),
        "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]),
        "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]),
        "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]),
        "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]),
        "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]),
        "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]),
        "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]),
        "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "n"(ADD), "n"(TRANSPOSED));
}
// c (64 x 16) += a (64 x 16) b (16 x 16)
template <bool ADD = true>
__device__ __forceinline__ void start_mma(float (&c)[4], float (&d)[4], const word& a0, const word& a1, const word& a2,
                                          const word& a3, Operand b) {
  asm volatile(
      "{.reg .pred p;\n\t"
      "setp.ne.b32 p, %13, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7}, "
      "{%8,%9,%10,%11}, %12, p, 1, 1, 0;}"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]),
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "n"(ADD));
}
// c (64 x 8 N) += a (64 x 16) b (16 x 8 N), both in shared memory; or, TRANSPOSED, as cores of 8 k with 16 bytes along m or n.
#define FOUR(c) "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
template <bool ADD, bool TRANSPOSED>
__device__ __forceinline__ void start_mma(float (&c)[7][4], Operand a, Operand b) {
  asm volatile(
      "{.reg .pred p;\n\t"
      "setp.ne.b32 p, %30, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n56k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27}, "
      "%28, %29, p, 1, 1, %31, %31;}"
      : FOUR(c[0]), FOUR(c[1]), FOUR(c[2]), FOUR(c[3]), FOUR(c[4]), FOUR(c[5]), FOUR(c[6])
      : "l"(a), "l"(b), "n"(ADD), "n"(TRANSPOSED));
}
template <bool ADD, bool TRANSPOSED, bool LEFT = TRANSPOSED>  // LEFT: whether a is transposed
__device__ __forceinline__ void start_mma(float (&c)[16][4], Operand a, Operand b) {
  asm volatile(
      "{.reg .pred p;\n\t"
      "setp.ne.b32 p, %66, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
      "%64, %65, p, 1, 1, %67, %68;}"
      : FOUR(c[0]), FOUR(c[1]), FOUR(c[2]), FOUR(c[3]), FOUR(c[4]), FOUR(c[5]), FOUR(c[6]), FOUR(c[7]),
        FOUR(c[8]), FOUR(c[9]), FOUR(c[10]), FOUR(c[11]), FOUR(c[12]), FOUR(c[13]), FOUR(c[14]), FOUR(c[15])
      : "l"(a), "l"(b), "n"(ADD), "n"(LEFT), "n"(TRANSPOSED));
}
template <bool ADD, bool TRANSPOSED>
__device__ __forceinline__ void start_mma(float (&c)[17][4], Operand a, Operand b) {
  asm volatile(
      "{.reg .pred p;\n\t"
      "setp.ne.b32 p, %70, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n136k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
      "%64,%65,%66,%67}, "
      "%68, %69, p, 1, 1, %71, %71;}"
      : FOUR(c[0]), FOUR(c[1]), FOUR(c[2]), FOUR(c[3]), FOUR(c[4]), FOUR(c[5]), FOUR(c[6]), FOUR(c[7]),
        FOUR(c[8]), FOUR(c[9]), FOUR(c[10]), FOUR(c[11]), FOUR(c[12]), FOUR(c[13]), FOUR(c[14]), FOUR(c[15]),
        FOUR(c[16])
      : "l"(a), "l"(b), "n"(ADD), "n"(TRANSPOSED));
}
template <bool ADD, bool TRANSPOSED>
__device__ __forceinline__ void start_mma(float (&c)[20][4], Operand a, Operand b) {
  asm volatile(
      "{.reg .pred p;\n\t"
      "setp.ne.b32 p, %82, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
      "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79}, "
      "%80, %81, p, 1, 1, %83, %83;}"
      : FOUR(c[0]), FOUR(c[1]), FOUR(c[2]), FOUR(c[3]), FOUR(c[4]), FOUR(c[5]), FOUR(c[6]), FOUR(c[7]),
        FOUR(c[8]), FOUR(c[9]), FOUR(c[10]), FOUR(c[11]), FOUR(c[12]), FOUR(c[13]), FOUR(c[14]), FOUR(c[15]),
        FOUR(c[16]), FOUR(c[17]), FOUR(c[18]), FOUR(c[19])
      : "l"(a), "l"(b), "n"(ADD), "n"(TRANSPOSED));
}
#undef FOUR
// Before the first product, and after c or a was touched.
__device__ __forceinline__ void before_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the last PENDING committed ones.
template <int PENDING = 0>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// The compiler shall not read c before this, and shall keep a until then.
__device__ __forceinline__ void hold(float& c) { asm volatile("" : "+f"(c)::"memory"); }
__device__ __forceinline__ void hold(const word& a) { asm volatile("" ::"r"(a) : "memory"); }
// Four warps' registers a thread from here on, a multiple of 8: less than before, or more once others have given theirs.
template <int COUNT>
__device__ __forceinline__ void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT>
__device__ __forceinline__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
// In shared memory, tells when copies of whole blocks of bytes are there: one at a time.
typedef unsigned long long Signal;
// One thread prepares it, before a barrier.
__device__ __forceinline__ void prepare(Signal* signal) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"((word)__cvta_generic_to_shared(signal)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // for the copies
}
// One thread's copy for all: a multiple of 16 bytes. Products may read it when it is there; what was read there before
// was read by products.
__device__ __forceinline__ void copy_block(void* shared, const void* global, int bytes, Signal* signal) {
  word to = (word)__cvta_generic_to_shared(signal);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(to), "r"(bytes) : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          (word)__cvta_generic_to_shared(shared)),
      "l"(global), "r"(bytes), "r"(to)
      : "memory");
}
// For the signal's k-th copy, k even or odd.
__device__ __forceinline__ void wait_for_block(Signal* signal, int odd) {
  asm volatile(
      "{.reg .pred p;\n\t"
      "again:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t"
      "@!p bra again;}" ::"r"((word)__cvta_generic_to_shared(signal)),
      "r"(odd)
      : "memory");
}
// What this thread wrote to shared memory, for products after the next barrier.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif
