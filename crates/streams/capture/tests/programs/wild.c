#define _GNU_SOURCE
// Does to one range of memory whatever a random generator says: maps, unmaps, moves, gives back, touches, in
// children and threads as well. The same every time for a seed.
#include "report.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 512
#define ARENA ((char *)0x100000000000)

static volatile uint64_t sink;
static uint64_t state;
// Whether a page is mapped.
static char mapped[PAGES];

static uint32_t draw(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static void work(int rounds) {
    uint64_t sum = 0;
    for (int i = 0; i < rounds; i++)
        sum = sum * 31 + (uint64_t)i;
    sink = sum;
}

static void touch(int first, int pages) {
    for (int page = first; page < first + pages; page++) {
        volatile char *at = ARENA + (long)page * PAGE;
        if (!mapped[page] || draw(3) == 0)
            continue;
        if (draw(2))
            *at = 1;
        else
            sink = (uint64_t)*at;
        work(20);
    }
}

struct part {
    int first, pages;
};

static void *thread(void *argument) {
    struct part *part = argument;
    touch(part->first, part->pages);
    return NULL;
}

static void map(int first, int pages) {
    if (mmap(ARENA + (long)first * PAGE, (size_t)pages * PAGE, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        _exit(20);
    for (int page = first; page < first + pages; page++)
        mapped[page] = 1;
}

static int all_mapped(int first, int pages) {
    for (int page = first; page < first + pages; page++)
        if (!mapped[page])
            return 0;
    return 1;
}

static void step(int in_child) {
    int pages = 1 + (int)draw(40), first = (int)draw((uint32_t)(PAGES / 2 - pages));
    char *at = ARENA + (long)first * PAGE;
    size_t bytes = (size_t)pages * PAGE;
    switch (draw(8)) {
    case 0:
        map(first, pages);
        break;
    case 1:
        munmap(at, bytes);
        for (int page = first; page < first + pages; page++)
            mapped[page] = 0;
        break;
    case 2:
        if (all_mapped(first, pages)) {
            // What is mapped in several steps is one mapping, or the call fails and nothing has moved.
            int to = PAGES / 2 + (int)draw((uint32_t)(PAGES / 2 - pages));
            void *moved = mremap(at, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, ARENA + (long)to * PAGE);
            if (moved != MAP_FAILED)
                for (int page = 0; page < pages; page++) {
                    mapped[first + page] = 0;
                    mapped[to + page] = 1;
                }
            // The emulator may have unmapped the new place even so.
            else
                map(to, pages);
        }
        break;
    case 3:
        touch(first, pages);
        if (all_mapped(first, pages))
            madvise(at, bytes, MADV_DONTNEED);
        touch(first, pages);
        break;
    case 4:
        if (!in_child) {
            struct part part = {first, pages};
            pthread_t other;
            pthread_create(&other, NULL, thread, &part);
            pthread_join(other, NULL);
        }
        break;
    case 5:
        if (!in_child) {
            pid_t pid = fork();
            if (pid == 0) {
                for (int i = 0; i < 6; i++)
                    step(1);
                _exit(0);
            }
            waitpid(pid, NULL, 0);
        }
        break;
    default:
        touch(draw(2) ? first : first + PAGES / 2, pages);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    report_to(argv[1]);
    report("arena", ARENA);
    state = (uint64_t)atol(argv[2]);
    map(0, PAGES);
    for (int i = 0; i < 60; i++)
        step(0);
    _exit(0);
}
