/*
 * Serves a client of its own over loopback: request number n is answered after 100 + n stores to the
 * report's "page". argv[2] says how.
 */
#define _GNU_SOURCE
#include "report.h"
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>

enum { REQUESTS = 5 };

static struct sockaddr_in address = { .sin_family = AF_INET };

static int joined(void)
{
	int at = socket(AF_INET, SOCK_STREAM, 0);

	if (connect(at, (struct sockaddr *)&address, sizeof(address)))
		_exit(1);
	return at;
}

static void *ask(void *page)
{
	int at[2] = { joined(), joined() };
	char answer;

	for (int n = 0; n < REQUESTS; n++) {
		int connection = at[n % 2];

		if (send(connection, "?", 1, 0) != 1 || recv(connection, &answer, 1, 0) != 1)
			_exit(2);
		/* What a client does with an answer is no request. */
		store((char *)page + 4096, 10);
	}
	close(at[0]);
	close(at[1]);
	return 0;
}

int main(int argc, char **argv)
{
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int waits = argc > 2 && !strcmp(argv[2], "poll");
	struct pollfd at[2];
	pthread_t client;

	report_to(argv[1]);
	report("page", page);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 2))
		return 3;
	getsockname(listener, (struct sockaddr *)&address, &length);
	pthread_create(&client, 0, ask, page);
	for (int i = 0; i < 2; i++) {
		at[i].fd = accept(listener, 0, 0);
		at[i].events = POLLIN;
	}
	for (int n = 0; n < REQUESTS; n++) {
		char request;
		int connection = at[n % 2].fd;

		if (waits)
			poll(at, 2, -1);
		if (read(connection, &request, 1) != 1)
			return 4;
		store(page, 100 + n);
		if (write(connection, "!", 1) != 1)
			return 5;
		/* Between requests. */
		store(page, 7);
	}
	pthread_join(client, 0);
	return 0;
}
