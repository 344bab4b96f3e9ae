// Gravitation of n bodies, all pairs, tiles of bodies in shared memory. Only
// correctly rounded operations (division, square root) are used.
#include "common.h"

constexpr int TILE = 128;

__global__ void forces(const float4 *body, float4 *speed, int n) {
    __shared__ float4 tile[TILE];
    int i = blockIdx.x * TILE + threadIdx.x;
    float4 me = i < n ? body[i] : make_float4(0, 0, 0, 0);
    float ax = 0, ay = 0, az = 0;
    for (int base = 0; base < n; base += TILE) {
        int j = base + threadIdx.x;
        tile[threadIdx.x] = j < n ? body[j] : make_float4(0, 0, 0, 0);
        __syncthreads();
        for (int k = 0; k < TILE; k++) {
            float4 other = tile[k];
            float dx = other.x - me.x, dy = other.y - me.y, dz = other.z - me.z;
            float r2 = dx * dx + dy * dy + dz * dz + 0.01f;
            float pull = other.w / (r2 * sqrtf(r2));
            ax += pull * dx;
            ay += pull * dy;
            az += pull * dz;
        }
        __syncthreads();
    }
    if (i < n) {
        float4 v = speed[i];
        speed[i] = make_float4(v.x + 0.01f * ax, v.y + 0.01f * ay, v.z + 0.01f * az, 0.0f);
    }
}

__global__ void move(float4 *body, const float4 *speed, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float4 b = body[i], v = speed[i];
        body[i] = make_float4(b.x + 0.01f * v.x, b.y + 0.01f * v.y, b.z + 0.01f * v.z, b.w);
    }
}

static float coordinate(uint64_t i) {
    return (float)(noise(i) % 20001) / 10000.0f - 1.0f;
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 1024, 30);
    int n = (int)o.size;
    std::vector<float4> body(n), speed(n, make_float4(0, 0, 0, 0));
    for (int i = 0; i < n; i++) {
        body[i] = make_float4(coordinate(3 * i), coordinate(3 * i + 1), coordinate(3 * i + 2),
                              0.001f * (float)(1 + noise(i) % 9));
    }
    float4 *db = to_device(body), *dv = to_device(speed);

    for (long k = 1; k <= o.steps; k++) {
        forces<<<blocks_for(n, TILE), TILE>>>(db, dv, n);
        move<<<blocks_for(n, 256), 256>>>(db, dv, n);
        CHECK_LAUNCH();
        CHECK(cudaDeviceSynchronize());
        step(o, k, o.steps);
    }

    body = from_device(db, n);
    speed = from_device(dv, n);
    for (const float4 &b : body) {
        require(b.x == b.x && b.y == b.y && b.z == b.z, "a position is not a number");
    }
    Digest d;
    d.all(body);
    d.all(speed);
    return finish("nbody", d);
}
