// The loops of tests/cuda/kernels.cu as one would write them in C for one core.
#include <math.h>

void heat(const float *in, float *out, int n) {
    for (int y = 1; y < n - 1; y++)
        for (int x = 1; x < n - 1; x++) {
            float c = in[y * n + x];
            out[y * n + x] = c + 0.1f * (in[(y - 1) * n + x] + in[(y + 1) * n + x] + in[y * n + x - 1] + in[y * n + x + 1] - 4.0f * c);
        }
}

void matmul(const float *a, const float *b, float *c, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int k = 0; k < n; k++) sum += a[i * n + k] * b[k * n + j];
            c[i * n + j] = sum;
        }
}

void reduce(const int *in, int *out, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += in[i];
    *out += sum;
}

void histogram(const unsigned char *in, unsigned *out, int n) {
    for (int i = 0; i < n; i++) out[in[i]]++;
}

void nbody(const float *body, float *force, int n) {
    for (int i = 0; i < n; i++) {
        const float *me = body + 4 * i;
        float fx = 0, fy = 0, fz = 0;
        for (int j = 0; j < n; j++) {
            const float *o = body + 4 * j;
            float dx = o[0] - me[0], dy = o[1] - me[1], dz = o[2] - me[2];
            float inv = 1.0f / sqrtf(dx * dx + dy * dy + dz * dz + 1e-3f);
            float s = o[3] * inv * inv * inv;
            fx += dx * s;
            fy += dy * s;
            fz += dz * s;
        }
        force[4 * i] = fx;
        force[4 * i + 1] = fy;
        force[4 * i + 2] = fz;
        force[4 * i + 3] = 0;
    }
}
