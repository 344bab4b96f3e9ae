// A gas in a closed box: the Euler equations in two dimensions by Lax and
// Friedrichs' scheme. Four fields in device memory, and on the host the time, the
// step and the course of both, all kept by checkpoints of its own.
#include "saver.h"

#include <cmath>

constexpr double GAMMA = 1.4;

struct Cell {
    double density, x, y, energy; // mass, momentum and energy in a unit of volume
};

struct Fields {
    double *density, *x, *y, *energy;
};

__device__ static double pressure(const Cell &c) {
    return (GAMMA - 1.0) * (c.energy - 0.5 * (c.x * c.x + c.y * c.y) / c.density);
}

__device__ static Cell at(const Fields &f, int n, int x, int y) {
    // Walls: what is outside mirrors what is inside.
    double along = x < 0 || x >= n ? -1.0 : 1.0, up = y < 0 || y >= n ? -1.0 : 1.0;
    int i = min(max(y, 0), n - 1) * n + min(max(x, 0), n - 1);
    return {f.density[i], along * f.x[i], up * f.y[i], f.energy[i]};
}

__device__ static Cell flux_x(const Cell &c) {
    double p = pressure(c), speed = c.x / c.density;
    return {c.x, c.x * speed + p, c.y * speed, (c.energy + p) * speed};
}

__device__ static Cell flux_y(const Cell &c) {
    double p = pressure(c), speed = c.y / c.density;
    return {c.y, c.x * speed, c.y * speed + p, (c.energy + p) * speed};
}

// The largest speed of a wave, as bits: those of positive numbers have their order.
__global__ void fastest(Fields f, int n, unsigned long long *out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n * n) {
        return;
    }
    Cell c = at(f, n, i % n, i / n);
    double sound = sqrt(GAMMA * pressure(c) / c.density);
    double speed = fmax(fabs(c.x), fabs(c.y)) / c.density + sound;
    atomicMax(out, (unsigned long long)__double_as_longlong(speed));
}

__global__ void advance(Fields from, Fields to, int n, double ratio) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= n || y >= n) {
        return;
    }
    Cell w = at(from, n, x - 1, y), e = at(from, n, x + 1, y);
    Cell s = at(from, n, x, y - 1), t = at(from, n, x, y + 1);
    Cell fw = flux_x(w), fe = flux_x(e), fs = flux_y(s), ft = flux_y(t);
    double half = 0.5 * ratio;
    int i = y * n + x;
#define NEXT(part)                                                                                 \
    to.part[i] = 0.25 * (w.part + e.part + s.part + t.part) -                                      \
                 half * (fe.part - fw.part + ft.part - fs.part)
    NEXT(density);
    NEXT(x);
    NEXT(y);
    NEXT(energy);
}

static Fields make(size_t cells) {
    return {device_array<double>(cells), device_array<double>(cells), device_array<double>(cells),
            device_array<double>(cells)};
}

static void drop(const Fields &f) {
    for (double *part : {f.density, f.x, f.y, f.energy}) {
        CHECK(cudaFree(part));
    }
}

static void keep(Saver &saver, const Fields &f, size_t cells) {
    uint32_t id = 2;
    for (double *part : {f.density, f.x, f.y, f.energy}) {
        saver.keep(id++, part, cells, FERMATA_FLOAT(8));
    }
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 192, 200);
    int n = (int)o.size;
    size_t cells = (size_t)n * n;
    std::vector<double> density(cells), none(cells, 0.0), energy(cells);
    for (size_t i = 0; i < cells; i++) {
        double x = (double)(i % n) / n - 0.4, y = (double)(i / n) / n - 0.5;
        bool inside = x * x + y * y < 0.04;
        density[i] = (inside ? 1.0 : 0.125) + (double)(noise(i) % 100) * 1e-5;
        energy[i] = (inside ? 1.0 : 0.1) / (GAMMA - 1.0);
    }
    Fields from = {to_device(density), to_device(none), to_device(none), to_device(energy)};
    Fields to = make(cells);
    unsigned long long *speed = device_array<unsigned long long>(1);

    struct {
        int64_t step;
        double time;
    } now = {0, 0.0};
    // Time and fastest wave of every step.
    std::vector<double> course(2 * (size_t)o.steps, 0.0);
    Saver saver(argc, argv);
    saver.keep(0, &now, 1, FERMATA_BYTES(sizeof(now)));
    saver.keep(1, course.data(), course.size(), FERMATA_FLOAT(8));
    keep(saver, from, cells);
    if (saver.resume()) {
        printf("resumed at %lld\n", (long long)now.step);
    }

    dim3 threads(32, 8), blocks(blocks_for(n, 32), blocks_for(n, 8));
    while (now.step < o.steps) {
        unsigned long long bits = 0;
        CHECK(cudaMemset(speed, 0, sizeof(bits)));
        fastest<<<blocks_for(cells, 256), 256>>>(from, n, speed);
        CHECK_LAUNCH();
        CHECK(cudaMemcpy(&bits, speed, sizeof(bits), cudaMemcpyDeviceToHost));
        double wave;
        memcpy(&wave, &bits, sizeof(wave));
        double ratio = 0.4 / wave; // of a step in time to one in space
        advance<<<blocks, threads>>>(from, to, n, ratio);
        CHECK_LAUNCH();
        std::swap(from, to);
        now.time += ratio / n;
        course[2 * (size_t)now.step] = now.time;
        course[2 * (size_t)now.step + 1] = wave;
        now.step++;
        keep(saver, from, cells);
        saver.step_done(now.step);
        if (now.step % 20 == 0 || now.step == o.steps) {
            step(o, now.step, o.steps);
        }
    }

    saver.done();
    Digest d;
    for (double *part : {from.density, from.x, from.y, from.energy}) {
        std::vector<double> field = from_device(part, cells);
        for (double value : field) {
            require(std::isfinite(value), "a field is not finite");
        }
        d.all(field);
    }
    d.all(course);
    d.bytes(&now, sizeof(now));
    drop(from);
    drop(to);
    CHECK(cudaFree(speed));
    return finish("app/hydro2d", d);
}
