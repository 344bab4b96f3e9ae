// How the end of a capture goes when other streams have been drawn into it: one line for each case, the error's name and the number
// of the graph's nodes. Run natively and by `fermata run`, it must print the same.
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call) check(call, #call)

static CUstream origin, fork_of_it, third;
static CUevent begun, forked;
static CUdeviceptr words;

static void check(CUresult result, const char *call) {
    if (result) {
        const char *name = "?";
        cuGetErrorName(result, &name);
        fprintf(stderr, "error: %s: %s\n", call, name);
        exit(1);
    }
}

static void work(CUstream stream) {
    CHECK(cuMemsetD32Async(words, 1, 4, stream));
}

static void waits(CUstream stream, CUevent event, CUstream from) {
    CHECK(cuEventRecord(event, from));
    CHECK(cuStreamWaitEvent(stream, event, 0));
}

// A node that the program adds itself, with nothing before it.
static CUgraphNode own_node(void) {
    CUstreamCaptureStatus status;
    cuuint64_t id;
    CUgraph graph;
    CUgraphNode node;
    CHECK(cuStreamGetCaptureInfo(origin, &status, &id, &graph, NULL, NULL, NULL));
    CHECK(cuGraphAddEmptyNode(&node, graph, NULL, 0));
    return node;
}

static void depend(CUstream stream, CUgraphNode node, unsigned how) {
    CHECK(cuStreamUpdateCaptureDependencies(stream, node ? &node : NULL, NULL, node ? 1 : 0, how));
}

static const unsigned SET = CU_STREAM_SET_CAPTURE_DEPENDENCIES, ADD = CU_STREAM_ADD_CAPTURE_DEPENDENCIES;

static void nothing(void) {}

static void with_work(void) { work(fork_of_it); }

static void set(void) { depend(fork_of_it, own_node(), SET); }

static void add(void) { depend(fork_of_it, own_node(), ADD); }

static void work_then_set_to_nothing(void) {
    work(fork_of_it);
    depend(fork_of_it, NULL, SET);
}

static void work_then_add(void) {
    work(fork_of_it);
    add();
}

static void set_then_work(void) {
    set();
    work(fork_of_it);
}

static void set_then_waited_for(void) {
    set();
    waits(third, forked, fork_of_it);
}

static void origin_turns_away(void) { depend(origin, own_node(), SET); }

static void waited_for_then_set_to_nothing(void) {
    work(fork_of_it);
    waits(third, forked, fork_of_it);
    depend(fork_of_it, NULL, SET);
}

static void joined_and_another_destroyed(void) {
    work(fork_of_it);
    waits(third, forked, fork_of_it);
    CHECK(cuStreamDestroy(third));
    third = NULL;
    CHECK(cuStreamWaitEvent(origin, forked, 0));
}

static void run(const char *what, void (*middle)(void)) {
    CUgraph graph = NULL;
    const char *name = "?";
    size_t nodes = 0;
    CHECK(cuStreamCreate(&fork_of_it, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&third, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    work(origin);
    waits(fork_of_it, begun, origin);
    middle();
    cuGetErrorName(cuStreamEndCapture(origin, &graph), &name);
    if (graph) {
        CHECK(cuGraphGetNodes(graph, NULL, &nodes));
        CHECK(cuGraphDestroy(graph));
    }
    printf("%s: %s %zu\n", what, name, nodes);
    CHECK(cuStreamDestroy(fork_of_it));
    if (third) {
        CHECK(cuStreamDestroy(third));
    }
}

int main(void) {
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&begun, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventCreate(&forked, CU_EVENT_DISABLE_TIMING));
    CHECK(cuMemAlloc(&words, 4096));
    run("fork without work", nothing);
    run("fork with work", with_work);
    run("set to a node of the program", set);
    run("add a node of the program", add);
    run("work, then set to nothing", work_then_set_to_nothing);
    run("work, then add", work_then_add);
    run("set, then work", set_then_work);
    run("set, then another stream waits", set_then_waited_for);
    run("origin set away from its work", origin_turns_away);
    run("work, another stream waits, then set to nothing", waited_for_then_set_to_nothing);
    run("joined, the other destroyed", joined_and_another_destroyed);
    return 0;
}
