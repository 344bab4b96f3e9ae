// Breadth-first search, level by level. Every level waits for a flag that the
// device sets and the host reads.
#include "common.h"

__global__ void expand(const int *first, const int *edges, int *level, int *changed, int depth,
                       int n) {
    int v = blockIdx.x * blockDim.x + threadIdx.x;
    if (v >= n || level[v] != depth) {
        return;
    }
    for (int e = first[v]; e < first[v + 1]; e++) {
        if (atomicCAS(&level[edges[e]], -1, depth + 1) == -1) {
            atomicAdd(changed, 1);
        }
    }
}

struct Graph {
    std::vector<int> first, edges;
};

// A ring with a few long chords: many levels and no dead end.
static Graph make_graph(int n) {
    Graph g;
    for (int v = 0; v < n; v++) {
        g.first.push_back((int)g.edges.size());
        g.edges.push_back((v + 1) % n);
        g.edges.push_back((v + n - 1) % n);
        if (v % 97 == 0) {
            g.edges.push_back((int)(noise(v) % n));
        }
    }
    g.first.push_back((int)g.edges.size());
    return g;
}

static std::vector<int> search_on_host(const Graph &g, int n, int source) {
    std::vector<int> level(n, -1), queue{source};
    level[source] = 0;
    for (size_t head = 0; head < queue.size(); head++) {
        int v = queue[head];
        for (int e = g.first[v]; e < g.first[v + 1]; e++) {
            if (level[g.edges[e]] < 0) {
                level[g.edges[e]] = level[v] + 1;
                queue.push_back(g.edges[e]);
            }
        }
    }
    return level;
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 20000, 4);
    int n = (int)o.size;
    Graph g = make_graph(n);
    int *first = to_device(g.first), *edges = to_device(g.edges);
    int *level = device_array<int>(n), *changed = device_array<int>(1);

    Digest d;
    for (long k = 1; k <= o.steps; k++) {
        int source = (int)(noise(k) % n), zero = 0, found = 1;
        CHECK(cudaMemset(level, 0xff, n * sizeof(int)));
        CHECK(cudaMemcpy(level + source, &zero, sizeof zero, cudaMemcpyHostToDevice));
        for (int depth = 0; found > 0; depth++) {
            CHECK(cudaMemset(changed, 0, sizeof(int)));
            expand<<<blocks_for(n, 256), 256>>>(first, edges, level, changed, depth, n);
            CHECK_LAUNCH();
            CHECK(cudaMemcpy(&found, changed, sizeof found, cudaMemcpyDeviceToHost));
        }
        std::vector<int> result = from_device(level, n);
        require(result == search_on_host(g, n, source), "levels differ from the host's");
        d.all(result);
        step(o, k, o.steps);
    }
    return finish("bfs", d);
}
