#define _GNU_SOURCE
// Runs two pieces of code in turn, one three times as long as the other, in ways that it is told.
#include "report.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile uint64_t sink;
static volatile uint8_t bytes[1 << 16];

__attribute__((noinline)) static void sums(int rounds) {
    uint64_t sum = 1;
    for (int i = 0; i < rounds; i++)
        sum = sum * 31 + (sum >> 7);
    sink = sum;
}

__attribute__((noinline)) static void stores(int rounds) {
    for (int i = 0; i < rounds; i++)
        bytes[i * 67 & 0xffff] ^= (uint8_t)i;
}

static void turns(int count) {
    for (int turn = 0; turn < count; turn++) {
        sums(240000);
        stores(60000);
    }
}

static void *turn_too(void *argument) {
    turns(10);
    return argument;
}

int main(int argc, char **argv) {
    (void)argc;
    report_to(argv[1]);
    report("bytes", (const void *)bytes);
    const char *how = argv[2];
    if (write(1, "written\n", 8) != 8)
        return 1;
    if (!strcmp(how, "processes")) {
        for (int child = 0; child < 2; child++)
            if (fork() == 0) {
                turns(10);
                _exit(0);
            }
        while (wait(NULL) > 0)
            ;
    }
    if (!strcmp(how, "threads")) {
        pthread_t others[2];
        for (int other = 0; other < 2; other++)
            pthread_create(&others[other], NULL, turn_too, NULL);
        for (int other = 0; other < 2; other++)
            pthread_join(others[other], NULL);
    }
    turns(!strcmp(how, "alone") ? 20 : 10);
    return 4;
}
