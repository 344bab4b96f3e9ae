// A linked list in device memory, each node an allocation of its own: a launch
// names the first node only, and the kernel follows it through all others.
#include "common.h"

const int WORDS = 1020;

struct Node {
    Node *next;
    unsigned long long length;
    unsigned values[WORDS];
};

// One block walks the list; its threads change each node together.
__global__ void walk(Node *head, unsigned k) {
    unsigned carry = k;
    for (Node *node = head; node; node = node->next) {
        for (unsigned i = threadIdx.x; i < node->length; i += blockDim.x) {
            node->values[i] = node->values[i] * 5 + carry + i;
        }
        __syncthreads();
        carry = node->values[carry % node->length] ^ k;
        __syncthreads();
    }
}

// Moves the first node behind the second, or the second behind the third.
__global__ void relink(Node **head, unsigned k) {
    Node **at = k % 2 ? head : &(*head)->next;
    Node *first = *at, *second = first->next;
    if (second) {
        first->next = second->next;
        second->next = first;
        *at = second;
    }
}

int main(int argc, char **argv) {
    Options o = begin(argc, argv, 24, 600);
    std::vector<Node *> nodes;
    for (long i = 0; i < o.size; i++) {
        nodes.push_back(device_array<Node>(1));
    }
    for (long i = 0; i < o.size; i++) {
        Node host = {i + 1 < o.size ? nodes[i + 1] : nullptr, (unsigned long long)WORDS, {}};
        for (int w = 0; w < WORDS; w++) {
            host.values[w] = noise((uint64_t)i * WORDS + w);
        }
        CHECK(cudaMemcpy(nodes[i], &host, sizeof host, cudaMemcpyHostToDevice));
    }
    Node **head = to_device(std::vector<Node *>{nodes[0]});

    for (long k = 1; k <= o.steps; k++) {
        Node *first = from_device(head, 1)[0];
        walk<<<1, 256>>>(first, (unsigned)k);
        CHECK_LAUNCH();
        relink<<<1, 1>>>(head, (unsigned)k);
        CHECK_LAUNCH();
        if (k % 10 == 0) {
            CHECK(cudaDeviceSynchronize());
            step(o, k, o.steps);
        }
    }

    Digest d;
    long count = 0;
    for (Node *node = from_device(head, 1)[0]; node;) {
        Node host = from_device(node, 1)[0];
        d.bytes(host.values, sizeof host.values);
        node = host.next;
        count++;
    }
    require(count == o.size, "length of the list");
    return finish("chain", d);
}
