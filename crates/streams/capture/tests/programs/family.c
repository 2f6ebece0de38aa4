/* argv[2] says how to beget a process; argv[3] stops the new one from doing so too. */
#define _GNU_SOURCE
#include "report.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>

static char buffer[4096] __attribute__((aligned(4096)));
extern char **environ;

static void *sleep_then_store(void *count)
{
	usleep(50000);
	store(buffer, (uint64_t)count);
	return 0;
}

static int finish(pid_t child)
{
	int status = 0;

	if (child < 0 || waitpid(child, &status, 0) != child)
		return 1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

int main(int argc, char **argv)
{
	char *again[] = { argv[0], argv[1], argv[2], "child", 0 };
	pid_t child;

	report_to(argv[1]);
	if (argc > 3) {
		report("image", buffer);
		store(buffer, 500);
		_exit(5);
	}
	report("buffer", buffer);
	store(buffer, 100);
	if (!strcmp(argv[2], "fork")) {
		char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		report("page", page);
		child = fork();
		if (child == 0) {
			usleep(20000);
			store(page, 300);
			_exit(6);
		}
		/* Gone here long before the child uses its copy. */
		munmap(page, 4096);
		return finish(child);
	}
	if (!strcmp(argv[2], "threads")) {
		pthread_t thread;
		int status;

		pthread_create(&thread, 0, sleep_then_store, (void *)100);
		child = fork();
		if (child == 0) {
			pthread_create(&thread, 0, sleep_then_store, (void *)100);
			pthread_join(thread, 0);
			_exit(6);
		}
		status = finish(child);
		pthread_join(thread, 0);
		return status;
	}
	if (!strcmp(argv[2], "vfork")) {
		child = vfork();
		if (child == 0) {
			execv(argv[0], again);
			_exit(9);
		}
		return finish(child);
	}
	if (!strcmp(argv[2], "spawn")) {
		if (posix_spawn(&child, argv[0], 0, 0, again, environ))
			return 8;
		return finish(child);
	}
	if (!strcmp(argv[2], "self")) {
		execv("/proc/self/exe", again);
		return 8;
	}
	execv("/nowhere/program", again);
	execv(argv[0], again);
	return 7;
}
