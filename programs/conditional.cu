// Conditional nodes of CUDA graphs, decided on the device: an IF with an else, a WHILE that computes until nothing changes,
// with another IF in it, and a SWITCH, one case of which runs a child graph and one of which does not exist. Bodies are built
// node by node and by capture. One executable graph is launched again and again, each time with other outcomes, and a kernel
// in a body is given other parameters between launches.
#include "common.h"

static const unsigned threads = 128;

// What the device decides by, and counts.
struct Control {
    unsigned launch;      // launches so far
    unsigned left;        // the largest value that the loop has left
    unsigned turn;        // turns of this launch's loop
    unsigned turns;       // of all launches
    unsigned taken[8];    // how often each body ran
};

// As one parameter, in which the handles are not the first words.
struct Decisions {
    Control *control;
    cudaGraphConditionalHandle either, loop;
};

__global__ void affine(unsigned *v, unsigned factor, unsigned addend, int n, unsigned *taken) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        v[i] = v[i] * factor + addend;
    }
    if (i == 0) {
        *taken += 1;
    }
}

__global__ void mix(unsigned *v, const unsigned *w, int n, unsigned *taken) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        v[i] ^= w[n - 1 - i] + (unsigned)i;
    }
    if (i == 0) {
        *taken += 1;
    }
}

__global__ void seed(unsigned *v, const unsigned *w, int n, Control *control) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        v[i] = noise((uint64_t)control->launch << 32 | (w[i] & 0xffffu)) & 0xfffffu;
    }
}

// Decides what the launch does, after it was counted.
__global__ void decide(Decisions d, cudaGraphConditionalHandle which) {
    Control *control = d.control;
    control->launch += 1;
    control->turn = 0;
    uint32_t chance = noise(control->launch);
    cudaGraphSetConditional(d.either, chance & 1u);
    cudaGraphSetConditional(which, (chance >> 1) % 4u);
}

__global__ void shrink(unsigned *to, const unsigned *from, int n, unsigned *left) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        unsigned v = from[i] - ((from[i] + 3u) >> 2);
        to[i] = v;
        if (v) {
            atomicMax(left, v);
        }
    }
}

// Whether the loop goes on, and whether this turn does more.
__global__ void look(Control *control, cudaGraphConditionalHandle loop, cudaGraphConditionalHandle more) {
    control->turn += 1;
    control->turns += 1;
    cudaGraphSetConditional(loop, control->left);
    cudaGraphSetConditional(more, control->turn % 5u == 2u);
}

static cudaGraphNode_t kernel(cudaGraph_t graph, const std::vector<cudaGraphNode_t> &after, void *function,
                              unsigned blocks, unsigned size, void **args) {
    cudaKernelNodeParams p = {};
    p.func = function;
    p.gridDim = dim3(blocks);
    p.blockDim = dim3(size);
    p.kernelParams = args;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &p));
    return node;
}

static cudaGraphConditionalHandle condition(cudaGraph_t graph, unsigned value, unsigned flags) {
    cudaGraphConditionalHandle handle;
    CHECK(cudaGraphConditionalHandleCreate(&handle, graph, value, flags));
    return handle;
}

// Adds a conditional node; `bodies` gets its graphs.
static cudaGraphNode_t conditional(cudaGraph_t graph, cudaGraphNode_t after, cudaGraphConditionalHandle handle,
                                   cudaGraphConditionalNodeType type, std::vector<cudaGraph_t> &bodies) {
    cudaGraphNodeParams p = {};
    p.type = cudaGraphNodeTypeConditional;
    p.conditional.handle = handle;
    p.conditional.type = type;
    p.conditional.size = (unsigned)bodies.size();
    cudaGraphNode_t node;
    CHECK(cudaGraphAddNode(&node, graph, &after, nullptr, 1, &p));
    bodies.assign(p.conditional.phGraph_out, p.conditional.phGraph_out + bodies.size());
    cudaGraphNodeType found;
    CHECK(cudaGraphNodeGetType(node, &found));
    require(found == cudaGraphNodeTypeConditional, "the type of a conditional node");
    return node;
}

struct Data {
    unsigned *a, *b, *cur, *next;
    Control *control;
    int n;
};

// The IF: one body built node by node, the other captured. Returns the kernel that changes between launches.
static cudaGraphNode_t fill_either(const std::vector<cudaGraph_t> &bodies, Data &d, cudaStream_t stream) {
    unsigned factor = 3, addend = 1, blocks = blocks_for(d.n, threads);
    unsigned *taken = &d.control->taken[0];
    void *args[] = {&d.a, &factor, &addend, &d.n, &taken};
    cudaGraphNode_t changing = kernel(bodies[0], {}, (void *)affine, blocks, threads, args);

    CHECK(cudaStreamBeginCaptureToGraph(stream, bodies[1], nullptr, nullptr, 0, cudaStreamCaptureModeThreadLocal));
    mix<<<blocks, threads, 0, stream>>>(d.b, d.a, d.n, &d.control->taken[1]);
    CHECK(cudaMemsetAsync(d.a, 0x11, (size_t)d.n / 8 * sizeof(unsigned), stream));
    CHECK(cudaMemcpyAsync(d.a + d.n / 2, d.b, (size_t)d.n / 4 * sizeof(unsigned), cudaMemcpyDeviceToDevice, stream));
    cudaGraph_t ended;
    CHECK(cudaStreamEndCapture(stream, &ended));
    require(ended == bodies[1], "a capture to a body ends with it");
    return changing;
}

// The WHILE: moves the last turn's values, clears what is left, computes, looks, and sometimes does more.
static void fill_loop(cudaGraph_t body, Data &d, cudaGraphConditionalHandle loop) {
    unsigned blocks = blocks_for(d.n, threads);
    size_t bytes = (size_t)d.n * sizeof(unsigned);
    cudaGraphNode_t moved, cleared;
    CHECK(cudaGraphAddMemcpyNode1D(&moved, body, nullptr, 0, d.cur, d.next, bytes, cudaMemcpyDeviceToDevice));
    unsigned *left = &d.control->left;
    cudaMemsetParams fill = {};
    fill.dst = left;
    fill.elementSize = 4;
    fill.width = 1;
    fill.height = 1;
    CHECK(cudaGraphAddMemsetNode(&cleared, body, nullptr, 0, &fill));
    void *shrunk[] = {&d.next, &d.cur, &d.n, &left};
    cudaGraphNode_t last = kernel(body, {moved, cleared}, (void *)shrink, blocks, threads, shrunk);
    cudaGraphConditionalHandle more = condition(body, 0, cudaGraphCondAssignDefault);
    void *looked[] = {&d.control, &loop, &more};
    last = kernel(body, {last}, (void *)look, 1, 1, looked);
    std::vector<cudaGraph_t> bodies(1);
    conditional(body, last, more, cudaGraphCondTypeIf, bodies);
    unsigned *taken = &d.control->taken[2];
    void *mixed[] = {&d.b, &d.next, &d.n, &taken};
    kernel(bodies[0], {}, (void *)mix, blocks, threads, mixed);
}

// The SWITCH of three: a kernel, a child graph, and nothing at all.
static void fill_which(const std::vector<cudaGraph_t> &bodies, Data &d) {
    unsigned factor = 5, addend = 2, blocks = blocks_for(d.n, threads);
    unsigned *taken = &d.control->taken[3];
    void *args[] = {&d.b, &factor, &addend, &d.n, &taken};
    kernel(bodies[0], {}, (void *)affine, blocks, threads, args);
    cudaGraph_t child;
    CHECK(cudaGraphCreate(&child, 0));
    taken = &d.control->taken[4];
    void *mixed[] = {&d.a, &d.b, &d.n, &taken};
    kernel(child, {}, (void *)mix, blocks, threads, mixed);
    cudaGraphNode_t node;
    CHECK(cudaGraphAddChildGraphNode(&node, bodies[1], nullptr, 0, child));
    CHECK(cudaGraphDestroy(child));
    CHECK(cudaGraphAddEmptyNode(&node, bodies[2], nullptr, 0));
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 8192, 60);
    Data d = {};
    d.n = (int)o.size;
    d.a = device_array<unsigned>(d.n);
    d.b = device_array<unsigned>(d.n);
    d.cur = device_array<unsigned>(d.n);
    d.next = device_array<unsigned>(d.n);
    d.control = device_array<Control>(1);
    CHECK(cudaMemset(d.a, 1, d.n * sizeof(unsigned)));
    CHECK(cudaMemset(d.b, 2, d.n * sizeof(unsigned)));
    CHECK(cudaMemset(d.cur, 0, d.n * sizeof(unsigned)));
    CHECK(cudaMemset(d.next, 0, d.n * sizeof(unsigned)));
    CHECK(cudaMemset(d.control, 0, sizeof(Control)));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaDeviceSynchronize());

    cudaGraph_t graph, clone;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphConditionalHandle either = condition(graph, 0, 0), which = condition(graph, 0, 0);
    cudaGraphConditionalHandle loop = condition(graph, 1, cudaGraphCondAssignDefault);
    Decisions decisions = {d.control, either, loop};
    void *decided[] = {&decisions, &which};
    cudaGraphNode_t last = kernel(graph, {}, (void *)decide, 1, 1, decided);
    void *seeded[] = {&d.next, &d.a, &d.n, &d.control};
    last = kernel(graph, {last}, (void *)seed, blocks_for(d.n, threads), threads, seeded);
    std::vector<cudaGraph_t> of_either(2), of_loop(1), of_which(3);
    last = conditional(graph, last, either, cudaGraphCondTypeIf, of_either);
    last = conditional(graph, last, loop, cudaGraphCondTypeWhile, of_loop);
    conditional(graph, last, which, cudaGraphCondTypeSwitch, of_which);
    cudaGraphNode_t changing = fill_either(of_either, d, stream);
    fill_loop(of_loop[0], d, loop);
    fill_which(of_which, d);
    require(cudaGraphClone(&clone, graph) != cudaSuccess, "a graph with conditional nodes has no clones");
    cudaGetLastError();
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));

    for (long k = 1; k <= o.steps; k++) {
        if (k % 5 == 0) {
            unsigned factor = 3, addend = (unsigned)k, *taken = &d.control->taken[0];
            void *args[] = {&d.a, &factor, &addend, &d.n, &taken};
            cudaKernelNodeParams p = {};
            p.func = (void *)affine;
            p.gridDim = dim3(blocks_for(d.n, threads));
            p.blockDim = dim3(threads);
            p.kernelParams = args;
            CHECK(cudaGraphExecKernelNodeSetParams(exec, changing, &p));
        }
        CHECK(cudaGraphLaunch(exec, stream));
        if (k % 3 == 0) {
            CHECK(cudaStreamSynchronize(stream));
            step(o, k, o.steps);
        }
    }
    CHECK(cudaStreamSynchronize(stream));

    Control control = from_device(d.control, 1)[0];
    require(control.launch == o.steps && control.turns >= 5 * o.steps, "every launch has a loop of several turns");
    for (int body = 0; o.steps >= 30 && body < 5; body++) {
        require(control.taken[body] > 0, "every body has run");
    }
    require(control.taken[0] + control.taken[1] == o.steps, "each launch runs one body of the two");
    Digest digest;
    digest.bytes(&control, sizeof control);
    digest.all(from_device(d.a, d.n));
    digest.all(from_device(d.b, d.n));
    digest.all(from_device(d.next, d.n));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    return finish("conditional", digest);
}
