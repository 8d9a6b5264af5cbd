"""The smallest complete DDP script, with a session: it saves checkpoints, and continues where it was stopped or killed."""

import torch

from ddpjob.session import Session

with Session() as session:
    torch.manual_seed(session.rank)
    model = session.replicate(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    session.track(model=model, optimizer=optimizer)
    for _ in session.steps(total=200, checkpoint_every=20):
        x = torch.rand(64, 1, device=session.device)
        loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.report(loss=loss)

    weight, bias = (parameter.item() for parameter in model.parameters())
    session.print(f"{session.world_size} ranks found y = {weight:.2f}x + {bias:.2f}")
