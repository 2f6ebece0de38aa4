/* A thread starts threads all the time, while the first one forks children that start one each. */
#include "report.h"
#include <pthread.h>
#include <sys/wait.h>

static volatile int is_over;

static void *nothing(void *argument)
{
	return argument;
}

static void *breed(void *argument)
{
	pthread_t thread;

	while (!is_over)
		if (!pthread_create(&thread, 0, nothing, 0))
			pthread_join(thread, 0);
	return argument;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	(void)argc;
	report_to(argv[1]);
	pthread_create(&thread, 0, breed, 0);
	for (int round = 0; round < 100; round++) {
		int status;
		pid_t child = fork();

		if (child == 0) {
			pthread_create(&thread, 0, nothing, 0);
			pthread_join(thread, 0);
			_exit(0);
		}
		if (child < 0 || waitpid(child, &status, 0) != child || status)
			return 1;
	}
	is_over = 1;
	pthread_join(thread, 0);
	return 0;
}
