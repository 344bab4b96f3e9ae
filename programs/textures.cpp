// The driver API as programs before CUDA 4 used it, and textures in all their forms: texture references bound again at
// every step, to arrays and to linear memory, a surface reference, a mipmapped array behind a texture object, and launches
// whose shape and parameters are set one by one. `--old-abi 1` also tells, on stderr, what the 32-bit functions of CUDA 3
// answer, which is no part of the digest.
#include "common.h"

#define CUDA_ENABLE_DEPRECATED
#include <cuda.h>
#include <dlfcn.h>
#include <string>

static void check(CUresult status, const char *what) {
    if (status != CUDA_SUCCESS) {
        const char *name = "unknown";
        cuGetErrorName(status, &name);
        fail(what, name);
    }
}
#define CHECK(call) check((call), #call)

static const char *TEXT = R"(
.version 7.5
.target sm_75
.address_size 64
.global .texref image;
.global .texref table;
.global .texref rows;
.global .surfref canvas;
// canvas[x, y] = image[x + 1, y] * 1664525 + table[y] + rows[x, y] + a texel of level `level`
.visible .entry paint(.param .u64 object, .param .u32 n, .param .u32 level, .param .f32 inverse)
{
    .reg .b32 %r<20>;
    .reg .f32 %f<12>;
    .reg .b64 %a<2>;
    ld.param.u64 %a0, [object];
    ld.param.u32 %r10, [n];
    ld.param.u32 %r11, [level];
    ld.param.f32 %f8, [inverse];
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r0, %r0, %r1, %r2;
    mov.u32 %r1, %ctaid.y;
    add.u32 %r2, %r0, 1;
    rem.u32 %r2, %r2, %r10;
    cvt.rn.f32.u32 %f0, %r2;
    cvt.rn.f32.u32 %f1, %r1;
    add.f32 %f0, %f0, 0f3F000000;
    add.f32 %f1, %f1, 0f3F000000;
    tex.2d.v4.u32.f32 {%r3, %r4, %r5, %r6}, [image, {%f0, %f1}];
    mul.lo.u32 %r12, %r3, 1664525;
    tex.1d.v4.u32.s32 {%r3, %r4, %r5, %r6}, [table, {%r1}];
    add.u32 %r12, %r12, %r3;
    cvt.rn.f32.u32 %f2, %r0;
    add.f32 %f2, %f2, 0f3F000000;
    tex.2d.v4.u32.f32 {%r3, %r4, %r5, %r6}, [rows, {%f2, %f1}];
    add.u32 %r12, %r12, %r3;
    mul.f32 %f3, %f2, %f8;
    mul.f32 %f4, %f1, %f8;
    cvt.rn.f32.u32 %f5, %r11;
    tex.level.2d.v4.u32.f32 {%r3, %r4, %r5, %r6}, [%a0, {%f3, %f4}], %f5;
    add.u32 %r12, %r12, %r3;
    shl.b32 %r0, %r0, 2;
    sust.b.2d.b32.trap [canvas, {%r0, %r1}], {%r12};
    ret;
}
)";

static const unsigned LEVELS = 4;

static std::vector<unsigned> numbers(size_t count, uint64_t seed) {
    std::vector<unsigned> all(count);
    for (size_t i = 0; i < count; i++) {
        all[i] = noise(seed + i);
    }
    return all;
}

static void copy(CUarray array, unsigned *host, unsigned width, bool to_array) {
    CUDA_MEMCPY2D c = {};
    CUmemorytype &host_type = to_array ? c.srcMemoryType : c.dstMemoryType;
    CUmemorytype &array_type = to_array ? c.dstMemoryType : c.srcMemoryType;
    host_type = CU_MEMORYTYPE_HOST;
    array_type = CU_MEMORYTYPE_ARRAY;
    if (to_array) {
        c.srcHost = host;
        c.srcPitch = 4 * width;
        c.dstArray = array;
    } else {
        c.dstHost = host;
        c.dstPitch = 4 * width;
        c.srcArray = array;
    }
    c.WidthInBytes = 4 * width;
    c.Height = width;
    CHECK(cuMemcpy2D(&c));
}

static CUarray canvas_of(unsigned n, uint64_t seed) {
    CUDA_ARRAY3D_DESCRIPTOR shape = {};
    shape.Width = shape.Height = n;
    shape.Format = CU_AD_FORMAT_UNSIGNED_INT32;
    shape.NumChannels = 1;
    shape.Flags = CUDA_ARRAY3D_SURFACE_LDST;
    CUarray array;
    CHECK(cuArray3DCreate(&array, &shape));
    copy(array, numbers((size_t)n * n, seed).data(), n, true);
    return array;
}

static CUtexref texture_reference(CUmodule module, const char *name) {
    CUtexref reference;
    CHECK(cuModuleGetTexRef(&reference, module, name));
    CHECK(cuTexRefSetFormat(reference, CU_AD_FORMAT_UNSIGNED_INT32, 1));
    CHECK(cuTexRefSetFlags(reference, CU_TRSF_READ_AS_INTEGER));
    CHECK(cuTexRefSetFilterMode(reference, CU_TR_FILTER_MODE_POINT));
    for (int dimension = 0; dimension < 2; dimension++) {
        CHECK(cuTexRefSetAddressMode(reference, dimension, CU_TR_ADDRESS_MODE_CLAMP));
    }
    return reference;
}

static CUtexObject mipmap_object(CUmipmappedArray mipmap) {
    CUDA_RESOURCE_DESC resource = {};
    resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    resource.res.mipmap.hMipmappedArray = mipmap;
    CUDA_TEXTURE_DESC sampling = {};
    sampling.addressMode[0] = sampling.addressMode[1] = CU_TR_ADDRESS_MODE_CLAMP;
    sampling.filterMode = sampling.mipmapFilterMode = CU_TR_FILTER_MODE_POINT;
    sampling.flags = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES;
    sampling.maxMipmapLevelClamp = LEVELS - 1;
    CUtexObject object;
    CHECK(cuTexObjectCreate(&object, &resource, &sampling, nullptr));
    return object;
}

// What the functions without `_v2` answer: symbols, as the header names their successors.
static void old_abi(CUarray array) {
    auto find = [](const char *name) { return dlsym(RTLD_DEFAULT, name); };
    unsigned a = 0, b = 0, row[4] = {};
    auto tell = [](const char *what, CUresult status, unsigned value) {
        fprintf(stderr, "%s: %d %u\n", what, (int)status, value);
    };
    auto alloc = (CUresult(*)(unsigned *, unsigned))find("cuMemAlloc");
    tell("cuMemAlloc", alloc(&a, 4096), a);
    auto info = (CUresult(*)(unsigned *, unsigned *))find("cuMemGetInfo");
    CUresult told = info(&a, &b);
    tell("cuMemGetInfo", told, b);
    auto total = (CUresult(*)(unsigned *, CUdevice))find("cuDeviceTotalMem");
    tell("cuDeviceTotalMem", total(&b, 0), b);
    auto set = (CUresult(*)(unsigned, unsigned char, unsigned))find("cuMemsetD8");
    tell("cuMemsetD8", set(0x1000, 0, 16), 0);
    auto read = (CUresult(*)(void *, CUarray, unsigned, unsigned))find("cuMemcpyAtoH");
    CUresult copied = read(row, array, 0, sizeof row);
    tell("cuMemcpyAtoH", copied, row[1]);
    CUtexref free_one;
    CUaddress_mode mode = CU_TR_ADDRESS_MODE_BORDER;
    CUresult made = cuTexRefCreate(&free_one);
    cuTexRefGetAddressMode(&mode, free_one, 0);
    tell("cuTexRefCreate, its address mode", made, mode);
    tell("cuTexRefDestroy", cuTexRefDestroy(free_one), 0);
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 64, 300);
    unsigned n = (unsigned)o.size;
    require(n >= 16 && (n & (n - 1)) == 0 && n <= 1024, "the size is no power of 2 from 16 to 1024");
    CUdevice device;
    CUcontext context, attached;
    CUmodule module;
    CUfunction paint;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuCtxCreate(&context, nullptr, 0, device));
    CHECK(cuCtxAttach(&attached, 0));
    CHECK(cuModuleLoadData(&module, TEXT));
    CHECK(cuModuleGetFunction(&paint, module, "paint"));

    CUarray canvas[2] = {canvas_of(n, 1), canvas_of(n, 2)};
    CUDA_ARRAY3D_DESCRIPTOR shape = {};
    shape.Width = shape.Height = n;
    shape.Format = CU_AD_FORMAT_UNSIGNED_INT32;
    shape.NumChannels = 1;
    CUmipmappedArray mipmap;
    CHECK(cuMipmappedArrayCreate(&mipmap, &shape, LEVELS));
    for (unsigned level = 0; level < LEVELS; level++) {
        CUarray array;
        CHECK(cuMipmappedArrayGetLevel(&array, mipmap, level));
        unsigned width = n >> level;
        copy(array, numbers((size_t)width * width, 100 + level).data(), width, true);
    }
    CUtexObject object = mipmap_object(mipmap);

    // Tables of the 1D reference, which takes one after the other, and the rows of the pitched one.
    CUdeviceptr tables[2], rows;
    size_t pitch, offset;
    for (int i = 0; i < 2; i++) {
        CHECK(cuMemAlloc(&tables[i], 4 * n));
        CHECK(cuMemcpyHtoD(tables[i], numbers(n, 7 + i).data(), 4 * n));
    }
    CHECK(cuMemAllocPitch(&rows, &pitch, 4 * n, n, 4));
    CHECK(cuMemsetD2D32(rows, pitch, 77, n, n));

    CUtexref image = texture_reference(module, "image"), table = texture_reference(module, "table");
    CUtexref pitched = texture_reference(module, "rows");
    CUsurfref surface;
    CHECK(cuModuleGetSurfRef(&surface, module, "canvas"));
    CUDA_ARRAY_DESCRIPTOR flat = {n, n, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    CHECK(cuTexRefSetAddress2D(pitched, &flat, rows, pitch));
    if (option(argc, argv, "--old-abi", 0)) {
        old_abi(canvas[0]);
    }

    CHECK(cuFuncSetBlockShape(paint, 16, 1, 1));
    CHECK(cuParamSetSize(paint, 20));
    CHECK(cuParamSetv(paint, 0, &object, 8));
    CHECK(cuParamSeti(paint, 8, n));
    CHECK(cuParamSetf(paint, 16, 1.0f / (float)n));
    // A module's own references are parameters of its kernels anyway; the driver 580 of an H200 refuses to be told so.
    CUresult told = cuParamSetTexRef(paint, CU_PARAM_TR_DEFAULT, image);
    require(told == CUDA_SUCCESS || told == CUDA_ERROR_INVALID_VALUE, "a texture reference is no parameter");
    for (long k = 1; k <= o.steps; k++) {
        CHECK(cuTexRefSetArray(image, canvas[k % 2], CU_TRSA_OVERRIDE_FORMAT));
        CHECK(cuSurfRefSetArray(surface, canvas[(k + 1) % 2], 0));
        if (k % 3 == 1) {
            CHECK(cuTexRefSetAddress(&offset, table, tables[k / 3 % 2], 4 * n));
            require(offset == 0, "a texture begins where its memory does");
        }
        CHECK(cuParamSeti(paint, 12, (unsigned)k % LEVELS));
        CHECK(cuLaunchGrid(paint, (int)n / 16, (int)n));
        if (k % 5 == 0) {
            CHECK(cuCtxSynchronize());
            step(o, k, o.steps);
        }
    }
    CHECK(cuCtxSynchronize());

    Digest d;
    std::vector<unsigned> end((size_t)n * n);
    for (CUarray array : canvas) {
        copy(array, end.data(), n, false);
        d.all(end);
    }
    CHECK(cuTexObjectDestroy(object));
    CHECK(cuMipmappedArrayDestroy(mipmap));
    CHECK(cuModuleUnload(module));
    CHECK(cuCtxDetach(attached));
    CHECK(cuCtxDetach(context));
    return finish("textures", d);
}
