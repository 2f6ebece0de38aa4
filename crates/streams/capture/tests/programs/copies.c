#define _GNU_SOURCE
// Forks, and stores to memory that parent and child have both: the second argument says who does.
#include "report.h"
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 64

static volatile uint64_t sink;
static volatile char *memory;

static void work(int rounds) {
    uint64_t sum = 0;
    for (int i = 0; i < rounds; i++)
        sum = sum * 31 + (uint64_t)i;
    sink = sum;
}

static void store_to_all(void) {
    for (int page = 0; page < PAGES; page++) {
        memory[page * PAGE]++;
        work(300);
    }
}

static void read_all(void) {
    for (int page = 0; page < PAGES; page++)
        sink = (uint64_t)memory[page * PAGE];
}

static void wait_for(pid_t child) {
    if (waitpid(child, NULL, 0) != child)
        _exit(20);
}

static void tell(int pipe) {
    if (write(pipe, "", 1) != 1)
        _exit(21);
}

static void await(int pipe) {
    char byte;
    if (read(pipe, &byte, 1) != 1)
        _exit(22);
}

/// Until the parent sleeps: which of two stored to a page in a gap is told by which of them goes on.
static void await_sleep_of(pid_t parent) {
    char path[32], line[256], *state = NULL;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)parent);
    while (!state || state[2] != 'S') {
        usleep(1000);
        int stat = open(path, O_RDONLY);
        ssize_t length = read(stat, line, sizeof line - 1);
        if (length <= 0)
            _exit(24);
        line[length] = '\0';
        close(stat);
        state = strrchr(line, ')');
        if (!state)
            _exit(25);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    const char *how = argv[2];
    if (!strcmp(how, "leave")) {
        usleep(50000);
        _exit(0);
    }
    report_to(argv[1]);
    memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    report("memory", (const void *)memory);
    report("thread", (const void *)((uintptr_t)__builtin_thread_pointer() & ~(uintptr_t)(PAGE - 1)));
    int to_child[2], to_parent[2];
    if (pipe(to_child) || pipe(to_parent))
        _exit(23);
    if (!strcmp(how, "read first")) {
        // Every second page is read before it is stored to.
        for (int page = 0; page < PAGES; page += 2)
            sink = (uint64_t)memory[page * PAGE];
        for (int page = 0; page < PAGES; page++)
            memory[page * PAGE] = 1;
        work(1000);
        _exit(0);
    }
    if (!strcmp(how, "protected")) {
        // Read while nothing may be stored, then stored to.
        mprotect((void *)memory, PAGES * PAGE, PROT_READ);
        read_all();
        mprotect((void *)memory, PAGES * PAGE, PROT_READ | PROT_WRITE);
        store_to_all();
        _exit(0);
    }
    if (!strcmp(how, "file")) {
        int program = open(argv[0], O_RDONLY);
        memory = mmap(NULL, PAGES * PAGE, PROT_READ, MAP_PRIVATE, program, 0);
        report("memory", (const void *)memory);
        // Further apart than the kernel maps pages of a file around one that is read.
        sink = (uint64_t)memory[0] + (uint64_t)memory[16 * PAGE];
        mprotect((void *)memory, 17 * PAGE, PROT_READ | PROT_WRITE);
        memory[16 * PAGE] = 1;
        work(1000);
        _exit(0);
    }
    store_to_all();
    if (!strcmp(how, "children")) {
        // One after another, each of which stores to all.
        for (int number = 0; number < 5; number++) {
            pid_t parent = getpid(), child = fork();
            if (child == 0) {
                await_sleep_of(parent);
                store_to_all();
                _exit(0);
            }
            wait_for(child);
        }
        _exit(0);
    }
    if (!strcmp(how, "line")) {
        // A child of a child of a child.
        for (int generation = 0; generation < 3; generation++) {
            pid_t parent = getpid(), child = fork();
            if (child != 0) {
                wait_for(child);
                _exit(0);
            }
            await_sleep_of(parent);
            store_to_all();
        }
        _exit(0);
    }
    if (!strcmp(how, "last")) {
        // The child copies half of all, and is gone when the parent stores to three quarters.
        pid_t child = fork();
        if (child == 0) {
            for (int page = 0; page < PAGES / 2; page++)
                memory[page * PAGE]++;
            work(1000);
            _exit(0);
        }
        wait_for(child);
        for (int page = PAGES / 4; page < PAGES; page++)
            memory[page * PAGE]++;
        work(100000);
        _exit(0);
    }
    int number = !strcmp(how, "three") ? 2 : 1;
    pid_t children[2];
    for (int i = 0; i < number; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            read_all();
            if (!strcmp(how, "both") || !strcmp(how, "three"))
                store_to_all();
            tell(to_parent[1]);
            await(to_child[0]);
            if (!strcmp(how, "execute"))
                execv(argv[0], (char *[]){argv[0], argv[1], "leave", NULL});
            _exit(0);
        }
    }
    for (int i = 0; i < number; i++)
        await(to_parent[0]);
    if (!strcmp(how, "parent") || !strcmp(how, "both") || !strcmp(how, "three"))
        store_to_all();
    if (!strcmp(how, "unmapped"))
        munmap((void *)memory, PAGES * PAGE);
    if (!strcmp(how, "killed")) {
        kill(children[0], SIGKILL);
        wait_for(children[0]);
        // Nobody has told yet that it is gone.
        work(100000);
        _exit(0);
    }
    for (int i = 0; i < number; i++)
        tell(to_child[1]);
    if (!strcmp(how, "execute")) {
        // The child's memory is gone, and the new program tells of itself later.
        usleep(10000);
        pid_t other = fork();
        if (other == 0)
            _exit(0);
        wait_for(other);
    }
    for (int i = 0; i < number; i++)
        wait_for(children[i]);
    work(100000);
    _exit(0);
}
