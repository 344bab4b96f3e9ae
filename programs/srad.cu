// Speckle-reducing diffusion of an image in pitched memory: two stencils a step
// with a reduction to the host between them, and 2D copies in and out.
#include "common.h"

struct Image {
    float *data;
    size_t pitch;
    __device__ float &at(int x, int y) const {
        return *(float *)((char *)data + y * pitch + x * sizeof(float));
    }
};

// Row sums of values and squares; the host adds the rows in order.
__global__ void row_sums(Image in, float2 *rows, int w, int h) {
    int y = blockIdx.x * blockDim.x + threadIdx.x;
    if (y >= h) {
        return;
    }
    float sum = 0, squares = 0;
    for (int x = 0; x < w; x++) {
        float v = in.at(x, y);
        sum += v;
        squares += v * v;
    }
    rows[y] = make_float2(sum, squares);
}

__global__ void coefficients(Image in, Image c, float q0, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= w || y >= h) {
        return;
    }
    float v = in.at(x, y);
    float n = in.at(x, max(y - 1, 0)) - v, s = in.at(x, min(y + 1, h - 1)) - v;
    float e = in.at(min(x + 1, w - 1), y) - v, o = in.at(max(x - 1, 0), y) - v;
    float g = (n * n + s * s + e * e + o * o) / (v * v), l = (n + s + e + o) / v;
    float den = 1.0f + 0.25f * l;
    float q = (0.5f * g - 0.0625f * l * l) / (den * den);
    float k = 1.0f / (1.0f + (q - q0) / (q0 * (1.0f + q0)));
    c.at(x, y) = fminf(fmaxf(k, 0.0f), 1.0f);
}

__global__ void diffuse(Image in, Image c, Image out, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= w || y >= h) {
        return;
    }
    int south = min(y + 1, h - 1), east = min(x + 1, w - 1);
    float v = in.at(x, y), k = c.at(x, y);
    float n = in.at(x, max(y - 1, 0)) - v, s = in.at(x, south) - v;
    float e = in.at(east, y) - v, o = in.at(max(x - 1, 0), y) - v;
    out.at(x, y) = v + 0.125f * (k * n + c.at(x, south) * s + k * o + c.at(east, y) * e);
}

static Image make_image(int w, int h) {
    Image i;
    CHECK(cudaMallocPitch((void **)&i.data, &i.pitch, w * sizeof(float), h));
    return i;
}

static float speckle(const float2 *drows, int w, int h) {
    double sum = 0, squares = 0;
    for (const float2 &r : from_device(drows, h)) {
        sum += r.x;
        squares += r.y;
    }
    double mean = sum / ((double)w * h);
    return (float)((squares / ((double)w * h) - mean * mean) / (mean * mean));
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 200, 60);
    int w = (int)o.size, h = (int)o.size - 8;
    std::vector<float> pixels((size_t)w * h);
    for (size_t i = 0; i < pixels.size(); i++) {
        pixels[i] = 1.0f + (float)(noise(i) % 256) / 64.0f;
    }
    Image in = make_image(w, h), c = make_image(w, h), out = make_image(w, h);
    CHECK(cudaMemcpy2D(in.data, in.pitch, pixels.data(), w * sizeof(float), w * sizeof(float), h,
                       cudaMemcpyHostToDevice));
    float2 *rows = device_array<float2>(h);

    dim3 threads(32, 8), blocks(blocks_for(w, 32), blocks_for(h, 8));
    for (long k = 1; k <= o.steps; k++) {
        row_sums<<<blocks_for(h, 64), 64>>>(in, rows, w, h);
        float q0 = speckle(rows, w, h);
        coefficients<<<blocks, threads>>>(in, c, q0, w, h);
        diffuse<<<blocks, threads>>>(in, c, out, w, h);
        CHECK_LAUNCH();
        std::swap(in, out);
        step(o, k, o.steps);
    }

    CHECK(cudaMemcpy2D(pixels.data(), w * sizeof(float), in.data, in.pitch, w * sizeof(float), h,
                       cudaMemcpyDeviceToHost));
    for (float p : pixels) {
        require(p > 0.9f && p < 5.1f, "a pixel left the range of the input");
    }
    Digest d;
    d.all(pixels);
    return finish("srad", d);
}
