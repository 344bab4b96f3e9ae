// Two GPUs that pass a buffer to and fro, by peer copies and by a kernel that
// reads the other's memory. With one GPU it plays both parts.
#include "common.h"

__global__ void blend(unsigned *mine, const unsigned *theirs, int n, unsigned salt) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        mine[i] = mine[i] * 69069u + theirs[i] + salt;
    }
}

struct Side {
    int device;
    unsigned *data, *inbox;
    cudaStream_t stream;
    cudaEvent_t ready;
};

static Side make_side(int device, int n, unsigned fill) {
    Side s;
    s.device = device;
    CHECK(cudaSetDevice(device));
    s.data = device_array<unsigned>(n);
    s.inbox = device_array<unsigned>(n);
    CHECK(cudaMemset(s.data, (int)fill, n * sizeof(unsigned)));
    CHECK(cudaMemset(s.inbox, 0, n * sizeof(unsigned)));
    CHECK(cudaStreamCreate(&s.stream));
    CHECK(cudaEventCreateWithFlags(&s.ready, cudaEventDisableTiming));
    CHECK(cudaDeviceSynchronize());
    return s;
}

static bool connect(const Side &from, const Side &to) {
    int can = 0;
    if (from.device == to.device) {
        return true;
    }
    CHECK(cudaDeviceCanAccessPeer(&can, from.device, to.device));
    if (can) {
        CHECK(cudaSetDevice(from.device));
        CHECK(cudaDeviceEnablePeerAccess(to.device, 0));
    }
    return can;
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 32768, 40);
    int n = (int)o.size, devices = 0;
    CHECK(cudaGetDeviceCount(&devices));
    Side sides[2] = {make_side(0, n, 3), make_side(devices > 1 ? 1 : 0, n, 5)};
    bool direct = connect(sides[0], sides[1]) && connect(sides[1], sides[0]);

    for (long k = 1; k <= o.steps; k++) {
        Side &me = sides[k % 2], &other = sides[1 - k % 2];
        CHECK(cudaSetDevice(me.device));
        CHECK(cudaStreamWaitEvent(me.stream, other.ready, 0));
        CHECK(cudaMemcpyPeerAsync(me.inbox, me.device, other.data, other.device,
                                  n * sizeof(unsigned), me.stream));
        const unsigned *source = direct && k % 3 == 0 ? other.data : me.inbox;
        blend<<<blocks_for(n, 128), 128, 0, me.stream>>>(me.data, source, n, (unsigned)k);
        CHECK_LAUNCH();
        CHECK(cudaEventRecord(me.ready, me.stream));
        if (k % 2 == 0) {
            CHECK(cudaStreamSynchronize(me.stream));
            step(o, k, o.steps);
        }
    }

    Digest d;
    for (Side &s : sides) {
        CHECK(cudaSetDevice(s.device));
        CHECK(cudaDeviceSynchronize());
        d.all(from_device(s.data, n));
    }
    return finish("peer", d);
}
