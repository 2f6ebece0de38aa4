#define _GNU_SOURCE
// Touches memory in ways that a sampled capture must find out: in gaps, again after it was given back, in
// children, in threads, and last of all right before the end.
#include "report.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

static volatile uint64_t sink;

// Some time without a touch of anything new.
static void work(int rounds) {
    uint64_t sum = 0;
    for (int i = 0; i < rounds; i++)
        sum = sum * 31 + (uint64_t)i;
    sink = sum;
}

static char *map(const char *name, int pages) {
    char *memory =
        mmap(NULL, (size_t)pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    report(name, memory);
    return memory;
}

static void *thread(void *memory) {
    for (int page = 0; page < 16; page++) {
        ((volatile char *)memory)[page * PAGE] = 1;
        work(5000);
    }
    return NULL;
}

int main(int argc, char **argv) {
    report_to(argv[1]);
    // Every third page, slowly; every ninth of them is only read.
    volatile char *sparse = map("sparse", 300);
    for (int page = 0; page < 300; page += 3) {
        if (page % 9 == 0)
            sink = (uint64_t)sparse[page * PAGE];
        else
            sparse[page * PAGE] = 1;
        work(1000);
    }
    // Given back and touched again, at once.
    volatile char *again = map("again", 10);
    for (int round = 0; round < 2; round++) {
        for (int page = 0; page < 10; page++)
            again[page * PAGE] = 1;
        madvise((void *)again, 10 * PAGE, MADV_DONTNEED);
    }
    again[0] = 1;
    // Gone before anybody could look.
    volatile char *gone = map("gone", 8);
    for (int page = 0; page < 8; page++)
        gone[page * PAGE] = 1;
    munmap((void *)gone, 8 * PAGE);
    // Moved after it was touched.
    volatile char *moved = map("from", 4);
    moved[PAGE] = 1;
    moved = mremap((void *)moved, 4 * PAGE, 4096 * PAGE, MREMAP_MAYMOVE);
    report("to", (const void *)moved);
    moved[3 * PAGE] = 1;
    // In a heap that shrinks, and grows again without being touched there.
    sbrk((intptr_t)(-(uintptr_t)sbrk(0) % PAGE));
    volatile char *heap = sbrk(16 * PAGE);
    report("heap", (const void *)heap);
    for (int page = 0; page < 16; page += 2)
        heap[page * PAGE] = 1;
    sbrk(-8 * PAGE);
    sbrk(8 * PAGE);
    heap[9 * PAGE] = 1;
    // By a thread and by a child.
    char *threads = map("thread", 16);
    if (argc > 2) {
        pthread_t other;
        pthread_create(&other, NULL, thread, threads);
        work(20000);
        pthread_join(other, NULL);
    }
    char *family = map("child", 8);
    volatile char *child = family;
    child[0] = 1;
    pid_t pid = fork();
    if (pid == 0) {
        child[PAGE] = 1;
        work(3000);
        _exit(0);
    }
    waitpid(pid, NULL, 0);
    volatile char *last = map("last", 4);
    last[2 * PAGE] = 1;
    _exit(7);
}
