// Reverse time migration in two dimensions: a wave is sent through rock and every
// step is saved; then what arrived at the surface is sent back in time, and each of
// its steps meets the saved one, read backward. Without saving, the forward wave is
// computed again from the beginning for every step back.
//
//   --config FILE    steps are checkpoints of the library, read ahead of their use
//   --plain FOLDER   each step is a file of its own
//
// A run that is killed on its way forward begins again; the library's checkpoints of
// the run before are not used.
#include <chrono>
#include <string>
#include <unistd.h>

#include "../common.h"
#include "fermata.h"

// The field of the step before is replaced by that of the step after.
__global__ void wave(float *before, const float *now, const float *speed, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < 1 || y < 1 || x >= n - 1 || y >= n - 1) {
        return;
    }
    int i = y * n + x;
    float bend = now[i - 1] + now[i + 1] + now[i - n] + now[i + n] - 4.0f * now[i];
    before[i] = 2.0f * now[i] - before[i] + speed[i] * bend;
}

__global__ void shake(float *field, int at, float by) { field[at] += by; }

// What the receivers below the surface hear.
__global__ void listen(const float *field, float *heard, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    if (x < n) {
        heard[x] = field[2 * n + x];
    }
}

__global__ void speak(float *field, const float *heard, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    if (x > 0 && x < n - 1) {
        field[2 * n + x] += heard[x];
    }
}

// Where both waves are at the same time, something has reflected.
__global__ void correlate(float *image, const float *forward, const float *backward, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n * n) {
        image[i] += forward[i] * backward[i];
    }
}

// Ricker's wavelet without transcendental functions, which differ between machines.
static float source(long step) {
    float t = ((float)step - 12.0f) / 6.0f, square = t * t;
    return (1.0f - 2.0f * square) / (1.0f + square * square * square);
}

// The saved steps of the forward wave.
class Steps {
  public:
    Steps(int argc, char **argv, float **field, size_t cells) : field_(field), cells_(cells) {
        const char *config = option_text(argc, argv, "--config");
        const char *folder = option_text(argc, argv, "--plain");
        if (config) {
            check(fermata_init(config, nullptr, &session_, &error_));
        } else if (folder) {
            folder_ = folder;
        }
    }

    bool saves() const { return session_ || !folder_.empty(); }

    void save(long step) {
        auto start = std::chrono::steady_clock::now();
        if (session_) {
            check(fermata_protect(session_, 0, *field_, cells_, FERMATA_FLOAT(4), &error_));
            check(fermata_checkpoint(session_, step, FERMATA_LOCAL, &error_));
        } else if (!folder_.empty()) {
            std::vector<float> copy = from_device(*field_, cells_);
            FILE *f = fopen(path(step).c_str(), "wb");
            if (!f || fwrite(copy.data(), sizeof(float), cells_, f) != cells_ || fclose(f) != 0) {
                fail(path(step).c_str(), "cannot be written");
            }
        }
        saving_ += seconds(start);
    }

    // Fills `into` with the wave of a step, and has the one before it read behind us.
    void load(long step, float *into) {
        auto start = std::chrono::steady_clock::now();
        if (session_) {
            check(fermata_protect(session_, 0, into, cells_, FERMATA_FLOAT(4), &error_));
            check(fermata_load(session_, step, &error_));
            if (step > 1) {
                check(fermata_prefetch(session_, step - 1, &error_));
            }
        } else {
            std::vector<float> copy(cells_);
            FILE *f = fopen(path(step).c_str(), "rb");
            if (!f || fread(copy.data(), sizeof(float), cells_, f) != cells_) {
                fail(path(step).c_str(), "cannot be read");
            }
            fclose(f);
            unlink(path(step).c_str());
            CHECK(cudaMemcpy(into, copy.data(), cells_ * sizeof(float), cudaMemcpyHostToDevice));
        }
        loading_ += seconds(start);
    }

    void done() {
        if (session_) {
            check(fermata_finalize(session_, 1, &error_));
        }
        fprintf(stderr, "{\"saving_s\":%.6f,\"loading_s\":%.6f}\n", saving_, loading_);
    }

  private:
    static double seconds(std::chrono::steady_clock::time_point since) {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
    }

    std::string path(long step) const { return folder_ + "/step-" + std::to_string(step); }

    void check(fermata_status status) {
        if (status != FERMATA_OK) {
            fail("checkpoint library", fermata_error_message(error_));
        }
    }

    float **field_;
    size_t cells_;
    fermata *session_ = nullptr;
    fermata_error *error_ = nullptr;
    std::string folder_;
    double saving_ = 0, loading_ = 0;
};

struct Wave {
    float *before, *now;
    int n;
    dim3 threads{32, 8}, blocks;

    explicit Wave(int n) : n(n), blocks(blocks_for(n, 32), blocks_for(n, 8)) {
        before = to_device(std::vector<float>((size_t)n * n, 0.0f));
        now = to_device(std::vector<float>((size_t)n * n, 0.0f));
    }

    void advance(const float *speed) {
        wave<<<blocks, threads>>>(before, now, speed, n);
        CHECK_LAUNCH();
        std::swap(before, now);
    }

    void free() {
        CHECK(cudaFree(before));
        CHECK(cudaFree(now));
    }
};

// One step of the forward wave.
static void forth(Wave &w, const float *speed, long step) {
    w.advance(speed);
    shake<<<1, 1>>>(w.now, 2 * w.n + w.n / 2, source(step));
    CHECK_LAUNCH();
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 96, 80);
    int n = (int)o.size;
    size_t cells = (size_t)n * n;
    std::vector<float> rock(cells);
    for (size_t i = 0; i < cells; i++) {
        // Harder rock below, with a lump in it.
        long x = (long)(i % n) - n / 2, y = (long)(i / n) - 2 * n / 3;
        rock[i] = x * x + y * y < n * n / 100 ? 0.4f : (long)i / n > n / 2 ? 0.2f : 0.1f;
    }
    float *speed = to_device(rock);
    float *image = to_device(std::vector<float>(cells, 0.0f));
    float *heard = device_array<float>((size_t)n * o.steps), *met = device_array<float>(cells);

    Wave forward(n);
    Steps steps(argc, argv, &forward.now, cells);
    for (long k = 1; k <= o.steps; k++) {
        forth(forward, speed, k);
        listen<<<blocks_for(n, 128), 128>>>(forward.now, heard + (size_t)n * (k - 1), n);
        CHECK_LAUNCH();
        steps.save(k);
        if (k % 10 == 0) {
            step(o, k, 2 * o.steps);
        }
    }

    Wave backward(n);
    for (long k = o.steps; k >= 1; k--) {
        backward.advance(speed);
        speak<<<blocks_for(n, 128), 128>>>(backward.now, heard + (size_t)n * (k - 1), n);
        CHECK_LAUNCH();
        if (steps.saves()) {
            steps.load(k, met);
        } else {
            Wave again(n);
            for (long j = 1; j <= k; j++) {
                forth(again, speed, j);
            }
            CHECK(cudaMemcpy(met, again.now, cells * sizeof(float), cudaMemcpyDeviceToDevice));
            again.free();
        }
        correlate<<<blocks_for(cells, 256), 256>>>(image, met, backward.now, n);
        CHECK_LAUNCH();
        long done = 2 * o.steps - k + 1;
        if (done % 10 == 0) {
            step(o, done, 2 * o.steps);
        }
    }
    steps.done();
    std::vector<float> result = from_device(image, cells);
    float largest = 0;
    for (float value : result) {
        largest = value > largest ? value : largest;
    }
    require(largest > 0, "nothing has reflected");
    Digest d;
    d.all(result);
    for (float *p : {speed, image, heard, met}) {
        CHECK(cudaFree(p));
    }
    forward.free();
    backward.free();
    return finish("app/rtm2d", d);
}
