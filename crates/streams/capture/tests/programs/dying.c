#define _GNU_SOURCE
// Ends in the way it is told, after it has touched memory that nothing but page tables shows in a gap.
#include "report.h"
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

static volatile uint64_t sink;
static volatile char *memory;
static volatile int handled;

static void work(int rounds) {
    uint64_t sum = 0;
    for (int i = 0; i < rounds; i++)
        sum = sum * 31 + (uint64_t)i;
    sink = sum;
}

static void handler(int signal) {
    (void)signal;
    memory[(32 + handled++) * PAGE] = 1;
}

static void *for_ever(void *argument) {
    (void)argument;
    memory[31 * PAGE] = 1;
    for (;;)
        work(1000);
    return NULL;
}

static void *for_a_while(void *argument) {
    memory[41 * PAGE] = 1;
    work(20000000);
    return argument;
}

int main(int argc, char **argv) {
    (void)argc;
    report_to(argv[1]);
    memory = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    report("memory", (const void *)memory);
    const char *how = argv[2];
    if (!strcmp(how, "handler")) {
        signal(SIGALRM, handler);
        struct itimerval each = {{0, 1000}, {0, 1000}};
        setitimer(ITIMER_REAL, &each, NULL);
        while (handled < 8)
            work(1000);
        signal(SIGALRM, SIG_IGN);
        _exit(handled < 30 ? 3 : 4);
    }
    if (!strcmp(how, "alone")) {
        for (int round = 0; round < 6000; round++) {
            memory[round % 64 * PAGE] = 1;
            work(1000);
        }
        _exit(8);
    }
    if (!strcmp(how, "long")) {
        // A child that ends in a gap, one that sleeps through several windows, and a thread.
        pid_t sleeper = fork();
        if (sleeper == 0) {
            usleep(300000);
            memory[40 * PAGE] = 1;
            work(1000000);
            _exit(0);
        }
        work(20000000);
        waitpid(sleeper, NULL, 0);
        pthread_t other;
        pthread_create(&other, NULL, for_a_while, NULL);
        work(20000000);
        pthread_join(other, NULL);
        _exit(9);
    }
    for (int page = 0; page < 30; page += 2) {
        memory[page * PAGE] = 1;
        work(2000);
    }
    if (!strcmp(how, "threads")) {
        pthread_t other;
        pthread_create(&other, NULL, for_ever, NULL);
        while (!memory[31 * PAGE])
            work(1000);
        raise(SIGTERM);
    }
    if (!strcmp(how, "abort"))
        abort();
    if (!strcmp(how, "fault"))
        *(volatile int *)8 = 1;
    if (!strcmp(how, "interrupt")) {
        /* Who runs the tests in the background may have it ignored. */
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
    if (!strcmp(how, "kill"))
        kill(getpid(), SIGKILL);
    if (!strcmp(how, "leave"))
        exit(5);
    return 6;
}
