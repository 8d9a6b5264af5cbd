"""`ddpjob events`."""

from ddpjob_cli.options import JobName, OutputOption, connect
from ddpjob_cli.output import note, print_objects


def command(job: JobName, output: OutputOption = None) -> None:
    """Show the events of a job and of its pods that the cluster still keeps, oldest first.

    [bold]Example[/bold]

      ddpjob events resnet18
    """
    from ddpjob_cli.rendering import event_lines

    with connect() as client:
        events = client.events(job)
    if output:
        print_objects([event.body for event in events], output)
        return
    if not events:
        note(f"no events of {job} are kept any more; a cluster keeps them for about an hour")
    for line in event_lines(events):
        print(line)
